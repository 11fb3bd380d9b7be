"""Wherever a command takes a path: a missing, empty, binary or unreadable one, or a link loop."""

import os
from collections.abc import Callable
from pathlib import Path

from tests.hostile.case import Case, case
from tests.hostile.world import DETECTED, EVALUATED, LEWEL, SEGMENTED, TRAINED, photos

# `PATH` is the hostile path.
ARGUMENTS = (
    f"pretrain PATH --out new {LEWEL} --epochs 1",
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1 --init PATH",
    "pretrain {plain} --out new --recipe PATH",
    f"pretrain {{photos}} --out new {LEWEL} --epochs 1 --classes PATH",
    f"knn PATH --data {{photos}} --out new {EVALUATED}",
    f"knn {{run}} --data PATH --out new {EVALUATED}",
    f"knn {{run}} --data {{photos}} --out new {EVALUATED} --classes PATH",
    f"linear PATH --data {{photos}} --out new {TRAINED}",
    f"linear {{run}} --data PATH --out new {TRAINED}",
    f"linear {{run}} --data {{photos}} --out new --recipe PATH {TRAINED}",
    f"finetune PATH --data {{photos}} --out new {TRAINED}",
    f"finetune {{run}} --data PATH --out new {TRAINED}",
    f"finetune {{run}} --data {{photos}} --out new --labels PATH {TRAINED}",
    f"finetune {{run}} --data {{photos}} --out new --recipe PATH {TRAINED}",
    f"segment PATH --data {{masks}} --out new {SEGMENTED}",
    f"segment {{run}} --data PATH --out new {SEGMENTED}",
    f"segment {{run}} --data {{masks}} --out new --recipe PATH {SEGMENTED}",
    f"detect PATH --data {{coco}} --out new {DETECTED}",
    f"detect {{run}} --data PATH --out new {DETECTED}",
    f"detect {{run}} --data {{coco}} --out new --classes PATH {DETECTED}",
    f"detect {{run}} --data {{coco}} --out new --recipe PATH {DETECTED}",
    f"embed PATH {{plain}} --out new.npz {EVALUATED}",
    f"embed {{run}} PATH --out new.npz {EVALUATED}",
    "export PATH --to torch-export --out new.pt2",
    "import PATH --out new",
    "maps PATH {plain}",
    "maps {run} PATH",
    "where PATH --data {plain}",
    "where {run} --data PATH --accelerator cpu",
    "report PATH",
    "report {run} PATH --out new.html",
    "results PATH",
    "pack PATH new --workers 0",
    "pack --check PATH",
    "bench data PATH",
)
# Where `PATH` is written to.
TARGETS = (
    f"pretrain {{plain}} --out PATH {LEWEL} --epochs 1",
    f"knn {{run}} --data {{photos}} --out PATH {EVALUATED}",
    f"segment {{run}} --data {{masks}} --out PATH {SEGMENTED}",
    f"embed {{run}} {{plain}} --out PATH/new.npz {EVALUATED}",
    "export {run} --to torch-export --out PATH/new.pt2",
    "export timm/test_resnet --random-init --to hub --out PATH",
    f"detect {{run}} --data {{coco}} --out PATH {DETECTED}",
    "import {foreign.pth} --out PATH",
    "maps {run} {plain} --out PATH",
    "report {run} --out PATH/new.html",
    "pack {plain} PATH --workers 0",
    "bench step --out PATH --rounds 1",
    "reproduce table1 --slurm --out PATH",
)


def _written(content: bytes) -> Callable[[Path], None]:
    return lambda place: (place / "given").write_bytes(content) and None


def _loop(place: Path) -> None:
    os.symlink("given", place / "given")


def _unreadable(place: Path) -> None:
    (place / "given").mkdir()
    photos(place / "given" / "inner", 3)
    (place / "given").chmod(0)


def _pipe(place: Path) -> None:
    os.mkfifo(place / "given")


def _run_without_files(place: Path) -> None:
    (place / "given" / "checkpoints").mkdir(parents=True)


KINDS: dict[str, Callable[[Path], None] | None] = {
    "a missing path": None,
    "an empty file": _written(b""),
    "random bytes": _written(os.urandom(4000)),
    "a line of nonsense": _written(b"[markup] :smile: {'a'\n"),
    "a link to itself": _loop,
    "an empty run folder": _run_without_files,
}


def cases() -> list[Case]:
    found = [
        case("refused", line.replace("PATH", "given"), why, prepare=prepare)
        for line in ARGUMENTS
        for why, prepare in KINDS.items()
    ]
    found += [
        case("refused", [word.replace("PATH", "") for word in line.split()], "an unset variable")
        for line in ARGUMENTS
    ]
    unreadable = [line for line in ARGUMENTS if "bench" not in line]
    found += [
        case(
            "refused",
            line.replace("PATH", "given"),
            "an unreadable folder",
            prepare=_unreadable,
            nobody=True,
        )
        for line in unreadable
    ]
    for line in TARGETS:
        file = _written(b"a file of somebody's")
        found.append(
            case("refused", line.replace("PATH", "given/below"), "below a file", prepare=file)
        )
        found.append(case("refused", line.replace("PATH", "/proc/new"), "cannot be written"))
    return [
        *found,
        case("refused", "pretrain given --out new", "a named pipe", prepare=_pipe),
        case("refused", "embed {run} given --out new.npz", "a named pipe", prepare=_pipe),
        case("refused", f"pretrain {'x' * 300} --out new", "a name of 300 characters"),
        case("refused", f"pretrain {{plain}} --out {'x' * 300}", "a name of 300 characters"),
        case("refused", ["pretrain", "\udcff.jpg", "--out", "new"], "a name that is no UTF-8"),
        case("refused", ["pretrain", "a\x00b", "--out", "new"], "a name with a zero byte"),
        case("refused", ["knn", "a\x00b", "--data", "{photos}"], "a name with a zero byte"),
        case("refused", "pretrain ~nobody-has-this-name/x --out new", "a home that is not there"),
        case(
            "stops",
            "pretrain http://127.0.0.1:9/none --out new --storage-timeout 0.05",
            "a URL that nobody serves",
        ),
        case("refused", "pretrain nothing://x/y --out new", "a protocol that does not exist"),
        case("refused", "pretrain cifar100000 --out new", "a data set that does not exist"),
    ]
