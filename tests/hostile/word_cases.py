"""Messages: literal paths, advice that helps, and no words of Python's or torch's."""

import re
from collections.abc import Callable
from pathlib import Path

import torch

from tests.hostile.case import Case, bring, case
from tests.hostile.world import EVALUATED, LEWEL, TRAINED, photos


def lacks(pattern: str) -> Callable[[Path, str], str | None]:
    def check(place: Path, said: str) -> str | None:
        found = re.search(pattern, said)
        return f"says {found[0]!r}" if found else None

    return check


def written(name: str, content: str) -> Callable[[Path], None]:
    return lambda place: (place / name).write_text(content) and None


def few(count: int) -> Callable[[Path], None]:
    return lambda place: photos(place / "given", count) and None


def _legacy(place: Path) -> None:
    """A file of torch's old format, which holds more than tensors."""
    torch.save(
        {"model": Path("x"), "state_dict": {}},
        place / "old.pth",
        _use_new_zipfile_serialization=False,
    )


def _whole_module(place: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), place / "module.pth")


def _moved_run(place: Path) -> None:
    bring(place, "run").rename(place / ":smile: [red]")


TRAIN = f"pretrain given --out new {LEWEL} --epochs 1"
LITERAL = r":smile: \[red\]"


def cases() -> list[Case]:
    labels = f"finetune {{run}} --data {{photos}} --out new {TRAINED} --labels given.txt"
    found = [
        case("refused", TRAIN, "2 images, batch 8", prepare=few(2)),
        case(
            "refused",
            TRAIN.replace("--batch-size 8", "--batch-size 2"),
            "1 image, batch 2",
            prepare=few(1),
            says="^(?!.*--batch-size 2 or less)",
        ),
        case(
            "warns",
            f"linear {{run}} --data {{photos}} --out new {TRAINED} --limit 1000",
            "a limit above the data",
            check=lacks(r"1,?000 of the"),
        ),
        case(
            "warns",
            f"embed {{run}} {{plain}} --out new.npz --limit 1000 {EVALUATED}",
            "a limit above the data",
            says="24 images",
            check=lacks(r"1,?000 of the"),
        ),
        case(
            "warns",
            "maps {run} {plain} --limit 1000 --out new",
            "a limit above the data",
            says="24 images",
            check=lacks(r"1,?000 of the"),
        ),
        case(
            "warns",
            "where {run} --data {plain} --limit 1000 --accelerator cpu",
            "a limit above the data",
            says="24 images",
            check=lacks(r"1,?000 of the"),
        ),
        case(
            "refused",
            f"pretrain {{plain}} --out new {LEWEL} --init r1.yaml",
            "--init with a recipe",
            prepare=written("r1.yaml", "seed: 1\n"),
            says=r"r1\.yaml",
        ),
        case(
            "refused",
            f"pretrain {{plain}} --out new {LEWEL} --init photo.jpg",
            "--init with a photo",
            prepare=written("photo.jpg", "x"),
            says=r"photo\.jpg",
        ),
        case(
            "refused",
            labels,
            "an empty file of labels",
            prepare=written("given.txt", ""),
            says=r"given\.txt",
        ),
        case(
            "refused",
            labels,
            "a blank file of labels",
            prepare=written("given.txt", "\n\n"),
            says=r"given\.txt",
        ),
        case(
            "refused",
            labels,
            "labels of unknown images",
            prepare=written("given.txt", "none.jpg\n"),
            says=r"none\.jpg",
        ),
        case("refused", "import old.pth --out new", "a file of more than tensors", prepare=_legacy),
        case("refused", "import module.pth --out new", "a whole module", prepare=_whole_module),
        case(
            "refused",
            f"knn module.pth --data {{photos}} --out new {EVALUATED}",
            "a whole module",
            prepare=_whole_module,
        ),
        case(
            "refused",
            f"pretrain {{plain}} --out new {LEWEL} --init module.pth",
            "a whole module",
            prepare=_whole_module,
        ),
        case("refused", "results {plain}", "a folder of photos"),
        case("refused", "results {other}", "a run without results"),
        case("refused", "report {plain}", "a folder of photos"),
        case("refused", "watch {plain}/000.jpg", "a photo"),
        case("refused", "maps {run} {foreign.pth}", "a checkpoint as image"),
        case("refused", "knn {plain}/000.jpg --data {photos}", "a photo as backbone"),
        case(
            "refused", "import {plain}/000.jpg --out new", "a photo as checkpoint", says=r"000\.jpg"
        ),
        case(
            "refused", "pretrain {plain}/000.jpg --out new", "one photo as data", says="one image"
        ),
        case("refused", "pretrain {foreign.pth} --out new", "a checkpoint as data"),
        case("refused", "pretrain {pack}/lewel-index.json --out new", "an index as data"),
    ]
    name = ":smile: [red]"
    for words in (
        ["knn", name, "--data", "{photos}", *EVALUATED.split()],
        ["maps", name, "{plain}", "--limit", "2"],
        ["report", name],
        ["embed", name, "{plain}", *EVALUATED.split()],
        ["export", name, "--to", "torch-export"],
        ["results", name],
        ["where", name, "--data", "{plain}", "--limit", "4", "--accelerator", "cpu"],
    ):
        found.append(
            case("runs", words, "a run with markup in its name", prepare=_moved_run, says=LITERAL)
        )
    for words in (
        ["knn", name, "--data", "{photos}"],
        ["results", name],
        ["report", name],
        ["export", name, "--to", "onnx"],
        ["pretrain", name],
        ["pack", name, "new"],
        ["import", name],
        ["maps", name, "{plain}"],
    ):
        found.append(case("refused", words, "a missing path with markup", says=LITERAL))
    return found
