"""Commands that run others, settings of storage, and methods' own options."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

from lewel.config.methods import own_options, taken
from lewel.methods.registry import find_method, method_names
from tests.hostile.case import Case, Right, bring, case
from tests.hostile.flag_cases import _kinds
from tests.hostile.world import EVALUATED, LEWEL, TRAINED
from tests.running import tiny_flags

# Each is refused with one sentence and leaves nothing behind.
REFUSED = {
    "compare": "no data",
    "compare nowhere --list": "data that does not exist",
    "compare {plain}/000.jpg --list": "a photo as data",
    "compare scenes --methods nothing --list": "a method that does not exist",
    "compare scenes --methods byol nothing --list": "one of two methods does not exist",
    "compare scenes --methods BYOL --list": "a method in capitals",
    "compare scenes --budget soon --list": "a budget that is no time",
    "compare scenes --budget 0 --list": "no time",
    "compare scenes --budget -5m --list": "negative time",
    "compare scenes --budget nan --list": "time that is no number",
    "compare scenes --budget 5 --list": "time without a unit",
    "compare scenes --seeds 0 --list": "no seeds",
    "compare scenes --seeds 1.5 --list": "half a seed",
    "compare scenes --jobs 0 --list": "no jobs",
    "compare scenes --jobs many --list": "jobs in words",
    "compare scenes --unknown 3 --list": "a flag that does not exist",
    "compare scenes scenes --list": "two data sets",
    "compare scenes --methods byol --out {plain} --list": "a folder of photos for the results",
    "compare scenes --methods byol --out {run} --list": "a run folder for the results",
    "compare scenes --methods byol --out {plain}/000.jpg --list": "a file for the results",
    "demo now": "an argument that demo does not take",
    "demo --seed -1": "a negative seed",
    "demo --seed 1.5": "half a seed",
    "demo --seed 99999999999999999999999": "a seed beyond 64 bits",
    "demo --epochs 3": "a flag of another command",
    "demo --out {plain}": "a folder of photos as run folder",
    "demo --out {plain}/000.jpg": "a photo as run folder",
    "demo --out {run}": "another run's folder",
    "demo --out {byol}": "a run of another method",
    "reproduce table1 --only nothing --list": "no such backbone",
    "reproduce table1 --only": "--only without a value",
    "reproduce table1 --only= --list": "an empty --only",
    "reproduce table1 --only LEWEL --list": "a backbone in capitals",
    "reproduce table1 --only lewel_b --seeds 0 --list": "no seeds",
    "reproduce table1 --only lewel_b --out {plain}": "a folder of photos for the results",
    "reproduce table1 table99 --only lewel_b --list": "a table that does not exist",
    "reproduce table1 --only lewel_b --scale small --data-root nowhere": "data that is missing",
}
LOCAL = (  # commands that take --cache, on data that is on a disk
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1",
    f"knn {{run}} --data {{photos}} --out new {EVALUATED}",
    f"linear {{run}} --data {{photos}} --out new {TRAINED}",
    f"embed {{run}} {{plain}} --out new.npz {EVALUATED}",
)
STORAGE = {
    "--cache-size 0": "no bytes",
    "--cache-size -5GB": "negative bytes",
    "--cache-size much": "a size in words",
    "--cache-size 10": "ten bytes",
    "--cache-size nanGB": "a size that is no number",
    "--cache-size 5XB": "an unknown unit",
    "--storage-timeout 0": "no time",
    "--storage-timeout -1": "negative time",
    "--storage-timeout nan": "time that is no number",
    "--storage-timeout inf": "time without end",
    "--storage-timeout soon": "time in words",
    "--cache=": "an empty cache",
}
URL = "file://{world}/pack"


def _shorter(place: Path) -> None:
    """The data of `run`, with fewer images than it was trained on."""
    for name in ("run", "plain"):
        bring(place, name)
    for path in sorted((place / "plain").iterdir())[:4]:
        path.unlink()


def _file(place: Path) -> None:
    (place / "taken").write_text("mine\n")


def _sealed(place: Path) -> None:
    (place / "taken").mkdir()
    os.chmod(place / "taken", 0o500)


def cases() -> list[Case]:
    found = [case("refused", line, why) for line, why in REFUSED.items()]
    found += [
        case("refused", [*line.split(), *flags.split()], why)
        for line in LOCAL
        for flags, why in STORAGE.items()
    ]
    found += [
        case("warns", f"{line} --cache kept", "a cache for a disk", says="--cache has no effect")
        for line in LOCAL
    ]
    train = f"pretrain {URL} --out new {LEWEL} --epochs 1"
    found += [
        case("runs", f"{train} --cache kept --cache-size 1MB", "the smallest cache"),
        case("refused", f"{train} --cache taken", "a file as cache", prepare=_file),
        case(
            "refused",
            f"{train.replace('{world}/pack', '{pack}')} --cache taken",
            "a cache without the right to write",
            prepare=_sealed,
            nobody=True,
        ),
        case("refused", f"pretrain --rescan --out new {LEWEL} --epochs 1", "rescan of no data"),
        case("refused", f"pretrain nowhere --rescan --out new {LEWEL}", "rescan of nothing"),
        case("refused", f"pretrain {{plain}} --rescan=3 --out new {LEWEL}", "rescan of three"),
        case(
            "refused",
            f"pretrain plain --rescan --out run {LEWEL} --epochs 2",
            "rescan of data that became less",
            prepare=_shorter,
        ),
        case("refused", "knn {run} --data {photos} --rescan", "a flag of pretrain"),
    ]
    return found + list(options())


def options() -> Iterator[Case]:
    """Every method's own settings with values of a wrong type and out of their range."""
    for method in method_names():
        own = find_method(method)
        flags = {**tiny_flags(method), "--limit": "24"}
        grouped = "contrast.norm_groups" in taken(own)
        line = " ".join(f"{name} {value}" for name, value in flags.items())
        line += " --contrast.norm-groups 2" if grouped else ""
        train = f"pretrain {{plain}} --out new --recipe paper --method {method} --epochs 1 {line}"
        hints = get_type_hints(own.__init__, include_extras=True)
        for name in own_options(own):
            for value in _wrong(hints[name]):
                right: Right = "refused"
                yield case(right, f"{train} --options.{name} {value}", f"{name} of {value}")
        yield case("refused", f"{train} --options.nothing 1", "an option that it does not have")


def _wrong(hint: object) -> tuple[str, ...]:
    kinds = _kinds(hint)
    if bool in kinds:
        return ("maybe", "3")
    if int in kinds or float in kinds:
        return ("words", "-1", "nan", *(() if float in kinds else ("1.5",)))
    return ("nothing",) if any(get_args(kind) for kind in kinds) else ()
