"""Packs of which a file is damaged, or whose index says what is not so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.pack.version_1 import as_version_1, write_samples
from tests.hostile.case import Case, Right, bring, case
from tests.hostile.run_folder_cases import DAMAGES
from tests.hostile.world import EVALUATED, LEWEL

CHECK = "pack --check {labelled_pack}"
TRAIN = f"pretrain {{labelled_pack}} --out new {LEWEL} --epochs 1"
KNN = f"knn {{run}} --data {{labelled_pack}} --out new {EVALUATED}"
EMBED = f"embed {{run}} {{labelled_pack}} --out new.npz {EVALUATED}"
READERS = (CHECK, TRAIN, KNN, EMBED)
REPAIR = "pack {world}/photos {labelled_pack} --workers 0 --shard-images 20"
SHARD, INDEX, SAMPLES = "train-000000.tar", "lewel-index.json", "lewel-samples.bin"


def damaged(file: str, damage: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda place: damage(bring(place, "labelled_pack") / file)


def index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A prepare that changes the index."""

    def prepare(place: Path) -> None:
        file = bring(place, "labelled_pack") / INDEX
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    return prepare


def samples(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], None]:
    """A prepare that changes the table of samples, with the right checksum in the index."""

    def prepare(place: Path) -> None:
        folder = as_version_1(bring(place, "labelled_pack"))
        with np.load(folder / "lewel-samples.npz") as opened:
            arrays = {name: opened[name] for name in opened}
        change(arrays)
        write_samples(folder, arrays)

    return prepare


def _leads_out(name: str) -> Callable[[Path], None]:
    """The first shard lies outside of the pack."""

    def prepare(place: Path) -> None:
        folder = bring(place, "labelled_pack")
        shutil.copy(folder / SHARD, place / "outside.tar")
        where = str(place / "outside.tar") if name == "absolute" else name
        index(lambda content: content["shards"]["train"][0].update(file=where))(place)

    return prepare


INDEXES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a version of words": lambda c: c.update(version="new"),
    "a newer version": lambda c: c.update(version=99),
    "no version": lambda c: c.pop("version"),
    "no shards": lambda c: c.update(shards={}),
    "shards that are a list": lambda c: c.update(shards=[]),
    "classes that are a number": lambda c: c.update(classes=3),
    "fewer classes than labels": lambda c: c.update(classes=["cat"]),
    "a shard of an unknown key": lambda c: c["shards"]["train"][0].update(more=1),
    "a shard that does not exist": lambda c: c["shards"]["train"][0].update(file="none.tar"),
}
SAMPLE_CHANGES: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "labels above the classes": lambda a: a.update({"train/labels": a["train/labels"] + 100}),
    "negative labels": lambda a: a.update({"train/labels": a["train/labels"] - 100}),
    "labels that are fractions": lambda a: a.update({"train/labels": a["train/labels"] + 0.5}),
    "fewer labels than images": lambda a: a.update({"train/labels": a["train/labels"][:3]}),
    "negative offsets": lambda a: a.update({"train/offsets": a["train/offsets"] - 10**9}),
    "offsets behind the end": lambda a: a.update({"train/offsets": a["train/offsets"] + 10**12}),
    "huge sizes": lambda a: a.update({"train/sizes": a["train/sizes"] + 10**12}),
    "wrong checksums": lambda a: a.update({"train/checksums": a["train/checksums"] + 1}),
    "no offsets": lambda a: a.pop("train/offsets"),
}


def cases() -> list[Case]:
    found = []
    for file in (SHARD, INDEX, SAMPLES):
        for why, damage in DAMAGES.items():
            for line in READERS:
                right: Right = "stops" if file == SHARD else "refused"
                if file == SHARD and why == "flipped" and line != CHECK:
                    right = "clear"  # one corrupt image, or a byte that no image uses
                prepare = damaged(file, damage)
                found.append(case(right, line, f"{file} {why}", prepare=prepare))
            prepare = damaged(file, damage)
            found.append(case("runs", REPAIR, f"{file} {why}, repaired", prepare=prepare))
    for why, change in INDEXES.items():
        found += [
            case(
                "stops" if "not exist" in why else "refused",
                line,
                f"an index with {why}",
                prepare=index(change),
            )
            for line in (CHECK, TRAIN, KNN)
            if why != "fewer classes than labels" or line == KNN
        ]
    for why, change in SAMPLE_CHANGES.items():
        found += [
            case("stops", line, f"samples with {why}", prepare=samples(change))
            for line in ((KNN,) if "label" in why else (KNN, TRAIN))
        ]
    for name in ("../outside.tar", "absolute", "records/../../outside.tar"):
        found += [
            case("refused", line, "a shard out of the pack's folder", prepare=_leads_out(name))
            for line in READERS
        ]
    return found
