"""Weights, masks and settings that would give a number which is none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.hostile.case import Case, bring, case
from tests.hostile.run_folder_cases import EMBED, KNN, MAPS, NEEDS, WHERE
from tests.hostile.world import EVALUATED, LEWEL, SEGMENTED, TRAINED, labelled, picture

Change = Callable[[dict[str, torch.Tensor]], None]


def _first(tensors: dict[str, torch.Tensor]) -> str:
    """The first tensor of weights, not of counters."""
    return next(n for n, value in tensors.items() if value.is_floating_point() and value.ndim > 1)


def filled(value: float) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[_first(tensors)].fill_(value)

    return change


def _one_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[_first(tensors)].view(-1)[3] = float("nan")


def _integers(tensors: dict[str, torch.Tensor]) -> None:
    name = _first(tensors)
    tensors[name] = (100 * tensors[name]).to(torch.int32)


def _negative_variance(tensors: dict[str, torch.Tensor]) -> None:
    tensors[next(name for name in tensors if name.endswith("running_var"))].fill_(-1)


WEIGHTS: dict[str, Change] = {
    "weights of nan": filled(float("nan")),
    "one weight of nan": _one_nan,
    "weights of inf": filled(float("inf")),
    "integer convolution weights": _integers,
}


def in_run(change: Change, file: str = "backbone.safetensors") -> Callable[[Path], None]:
    """A prepare that changes the weights of the run."""

    def prepare(place: Path) -> None:
        path = bring(place, "run") / file
        with safe_open(path, framework="pt") as opened:
            about = opened.metadata()
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata=about)

    return prepare


def in_file(change: Change) -> Callable[[Path], None]:
    """A prepare that changes a third-party checkpoint."""

    def prepare(place: Path) -> None:
        path = bring(place, "foreign.pth")
        content = torch.load(path, weights_only=True)
        change(content["state_dict"])
        torch.save(content, path)

    return prepare


def masks_of(value: int) -> Callable[[Path], None]:
    """A prepare that gives every mask one value."""

    def prepare(place: Path) -> None:
        for path in (bring(place, "masks") / "masks").rglob("*.png"):
            shape = np.asarray(Image.open(path)).shape
            Image.fromarray(np.full(shape, value, np.uint8)).save(path)

    return prepare


def identical(place: Path) -> None:
    """Forty times the same picture, in two classes."""
    for name in ("cat", "dog"):
        folder = place / "same" / name
        folder.mkdir(parents=True)
        for number in range(20):
            picture(0).save(folder / f"{number}.jpg")


def one_class(place: Path) -> None:
    labelled(place / "one" / "train", 20, ("cat",))
    labelled(place / "one" / "val", 20, ("cat",))


def one_listed_class(place: Path) -> None:
    bring(place, "photos")
    (place / "only.txt").write_text("cat\n")


ONE = "one class alone"


def cases() -> list[Case]:
    found = []
    for why, change in WEIGHTS.items():
        for line in NEEDS["backbone.safetensors"]:
            found.append(case("refused", line, why, prepare=in_run(change)))
        for line in NEEDS["heads.safetensors"]:
            if "integer" not in why:
                prepare = in_run(change, "heads.safetensors")
                found.append(case("refused", line, f"{why} in the head", prepare=prepare))
        for line in (
            "import {foreign.pth} --out new",
            f"knn {{foreign.pth}} --data {{photos}} --out new {EVALUATED}",
            f"embed {{foreign.pth}} {{plain}} --out new.npz {EVALUATED}",
            "export {foreign.pth} --to torch-export --out new.pt2",
            f"pretrain {{plain}} --out new {LEWEL} --epochs 1 --init {{foreign.pth}}",
        ):
            found.append(case("refused", line, f"{why} in a file", prepare=in_file(change)))
    for line in (KNN, EMBED, MAPS, WHERE):
        prepare = in_run(_negative_variance)
        found.append(case("stops", line, "features that are not finite", prepare=prepare))
    segment = f"segment {{run}} --data {{masks}} --out new {SEGMENTED}"
    found += [
        case("refused", segment, "masks without a known pixel", prepare=masks_of(255)),
        case("warns", segment, "masks of one class", prepare=masks_of(0), says="one class|1 class"),
        case(
            "warns",
            f"pretrain same --out new {LEWEL} --epochs 1",
            "40 identical images",
            prepare=identical,
            says="identical|same|collapse",
        ),
        case(
            "warns",
            f"knn {{run}} --data same --out new {EVALUATED}",
            "40 identical images",
            prepare=identical,
            says="identical|the same|differ",
        ),
        case(
            "warns",
            f"linear {{run}} --data same --out new --cached-features {TRAINED}",
            "40 identical images",
            prepare=identical,
            says="identical|the same|differ",
        ),
        case("refused", "maps {run} {plain} --seed -1", "a negative seed"),
        case("refused", "maps {run} {plain} --n 0", "no maps"),
        case(
            "warns",
            "maps {run} {plain} --n 100000 --limit 2",
            "more maps than there are",
            says="8 maps",
        ),
    ]
    for line in (
        f"knn {{run}} --data one --out new {EVALUATED}",
        f"linear {{run}} --data one --out new {TRAINED}",
        f"linear {{run}} --data one --out new --cached-features {TRAINED}",
        f"finetune {{run}} --data one --out new --labels 50% {TRAINED}",
    ):
        found.append(case("refused", line, ONE, prepare=one_class))
        listed = line.replace("--data one", "--data {photos} --classes only.txt")
        found.append(case("refused", listed, ONE, prepare=one_listed_class))
    return found
