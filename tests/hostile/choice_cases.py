"""Settings without a recipe, the arithmetic, and flags of doctor."""

import json
from pathlib import Path

import yaml

from tests.hostile.case import Case, case
from tests.hostile.world import DETECTED, EVALUATED, LEWEL, SEGMENTED, TRAINED, photos

# Commands that take --precision; tf32 is float32 where there is no CUDA.
PRECISE = (
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1",
    f"knn {{run}} --data {{photos}} --out new {EVALUATED}",
    f"linear {{run}} --data {{photos}} --out new {TRAINED}",
    f"segment {{run}} --data {{masks}} --out new {SEGMENTED}",
    f"detect {{run}} --data {{coco}} --out new {DETECTED}",
)
CHOSEN = "pretrain many --out new --accelerator cpu --dry-run"


WRONG = {
    " --budget 8h --epochs 3": "a budget and epochs",
    " --batch-size 4096": "a batch beyond the data",
    " --image-size 0": "no pixels",
    " --method nothing": "no such method",
    " --backbone resnet11": "no such network",
}


def _many(place: Path) -> None:
    photos(place / "many", 60)


def _names_tf32(place: Path, said: str) -> str | None:
    if (place / "new" / "config.yaml").exists():
        found = yaml.safe_load((place / "new" / "config.yaml").read_text())["precision"]
    else:
        (file,) = (place / "new" / "results").glob("*.json")
        found = json.loads(file.read_text())[0]["settings"]["precision"]
    return None if found == "tf32" else f"the precision is {found}"


def _wrote_nothing(place: Path, said: str) -> str | None:
    return "a dry run wrote a run folder" if (place / "new").exists() else None


def cases() -> list[Case]:
    found = [
        case("runs", f"{line} --precision tf32", "tf32 on a CPU", check=_names_tf32)
        for line in PRECISE
    ]
    found += [
        case("refused", f"{line} --precision {value}", f"the precision {value}")
        for line in PRECISE
        for value in ("TF32", "tf-32", "16-mixed")
    ]
    chosen = {"": "no recipe", " --epochs 3": "epochs alone", " --budget 8h": "a budget alone"}
    return [
        *found,
        *(
            case("runs", CHOSEN + flags, why, prepare=_many, check=_wrote_nothing)
            for flags, why in chosen.items()
        ),
        *(
            case("refused", CHOSEN + flags, f"{why}, no recipe", prepare=_many)
            for flags, why in WRONG.items()
        ),
        case("refused", CHOSEN.replace("many", "{plain}"), "too few images to choose for"),
        case("refused", CHOSEN.replace("many", "{plain}/000.jpg"), "a photo, no recipe"),
        case("refused", "doctor --json nothing", "a file for the report"),
        case("refused", "doctor --json=maybe", "a flag that is neither on nor off"),
        case("refused", "doctor {photos}", "a folder to check"),
        case("refused", "doctor --deep --devices 2", "a flag of another command"),
    ]
