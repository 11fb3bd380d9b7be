"""The files that a backbone argument names, and their metadata, without importing torch."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lewel.errors import UserError
from lewel.files import user_path

BACKBONE = "backbone.safetensors"
OF_A_RUN = ("card.json", "config.yaml")  # beside the weights of a run folder
STEMS = (None, "imagenet", "medium", "small")
NEEDED = {"backbone", "stem", "width", "image_size", "mean", "std"}


def read_card(file: Path) -> dict[str, Any]:
    """The metadata of a backbone.safetensors that lewel wrote; empty for other files."""
    try:
        with safe_open(file, framework="numpy") as opened:
            card: dict[str, Any] = json.loads((opened.metadata() or {}).get("lewel", "{}"))
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read as safetensors: {error}.") from None
    except ValueError:
        card = {"damaged": True}
    if not isinstance(card, dict) or (card and not _is_complete(card)):
        raise UserError(f"{file} is damaged (its metadata cannot be read): restore it.")
    return card


def _is_complete(card: dict[str, Any]) -> bool:
    """Whether a card has all that a backbone is built from, of the right kinds."""
    if not card.keys() >= NEEDED or not isinstance(card["backbone"], str):
        return False
    if card["stem"] not in STEMS:
        return False
    numbers = [card["mean"], card["std"]]
    if not all(isinstance(one, list) and len(one) == 3 for one in numbers):
        return False
    counts = [one for one in (card["width"], card["image_size"]) if one is not None]
    right = all(type(one) is int and one > 0 for one in counts)
    means, deviations = ([type(x) in (int, float) and x for x in one] for one in numbers)
    within = all(x is not False and 0 <= x <= 1 for x in means)
    return right and within and all(x is not False and 0 < x <= 1 for x in deviations)


def weights_file(what: str | Path) -> Path | None:
    """The file that a backbone argument names; None if it is a network's name."""
    path = user_path(what)
    if path.is_dir():
        path = path / "backbone.safetensors"
        if not path.is_file():
            raise UserError(f"{what} holds no backbone: expected a run folder.")
    return path if path.is_file() else None


def folder_for(what: str | Path) -> Path:
    """The folder for results of a backbone: its run folder, else runs/NAME."""
    file = weights_file(what)
    if file is None:
        return Path("runs") / str(what).replace("/", "-")
    folder = file.parent
    if user_path(what).is_dir() or any((folder / name).exists() for name in OF_A_RUN):
        return folder
    # Every run has a file of this name: its folder's name tells them apart.
    return Path("runs") / (folder.resolve().name if file.name == BACKBONE else file.stem)
