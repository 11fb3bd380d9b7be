"""Segmentation and detection: plans, predictions that are kept, odd masks and folders."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.hostile.case import Case, bring, case
from tests.hostile.world import DETECTED, SEGMENTED

SEGMENT = f"segment {{run}} --data {{masks}} --out new {SEGMENTED}"
DETECT = f"detect {{run}} --data {{coco}} --out new {DETECTED}"


def nothing_written(place: Path, said: str) -> str | None:
    return "wrote new/, though it was a dry run" if (place / "new").exists() else None


def coco_results(place: Path, said: str) -> str | None:
    """COCO's JSON of detections."""
    for file in (place / "new").rglob("*.json"):
        content = json.loads(file.read_text())
        keys = {"image_id", "category_id", "bbox", "score"}
        if isinstance(content, list) and content and keys <= set(content[0]):
            return None
    return "no COCO JSON of detections was written"


def mask_files(place: Path, said: str) -> str | None:
    """A PNG of class indices for each of the 4 validation images."""
    found = []
    for path in (place / "new").rglob("*.png"):
        picture = Image.open(path)
        if picture.mode in ("P", "L") and np.asarray(picture).max() < 3:
            found.append(path)
    return None if len(found) >= 4 else f"{len(found)} PNG masks were written, expected 4"


def masks(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """A prepare that changes one training mask."""
    return lambda place: (
        change(sorted((bring(place, "masks") / "masks" / "train").iterdir())[0]) and None
    )


def _colours(path: Path) -> None:
    Image.open(path).convert("RGB").save(path)


def _other_size(path: Path) -> None:
    Image.fromarray(np.zeros((7, 9), np.uint8)).save(path)


def _far_class(path: Path) -> None:
    shape = np.asarray(Image.open(path)).shape
    Image.fromarray(np.full(shape, 200, np.uint8)).save(path)
    (path.parents[2] / "classes.txt").write_text("a\nb\nc\n")


def classes(text: str) -> Callable[[Path], None]:
    return lambda place: (bring(place, "masks") / "classes.txt").write_text(text) and None


def removed(name: str, fixture: str) -> Callable[[Path], None]:
    def prepare(place: Path) -> None:
        for path in bring(place, fixture).glob(name):
            path.unlink()

    return prepare


def cases() -> list[Case]:
    return [
        case(
            "runs",
            f"{SEGMENT} --dry-run",
            "a dry run",
            check=nothing_written,
            says="time: about",
        ),
        case(
            "runs",
            f"{DETECT} --dry-run",
            "a dry run",
            check=nothing_written,
            says="time: about",
        ),
        case("runs", f"{SEGMENT} --save-predictions", "predictions for others", check=mask_files),
        case(
            "runs",
            f"{DETECT} --save-predictions --arch fpn",
            "predictions for others",
            check=coco_results,
        ),
        case("refused", f"{SEGMENT} --iterations 0", "no steps"),
        case("refused", f"{SEGMENT} --min-lr 1", "a last learning rate above the first"),
        case("refused", f"{SEGMENT} --crop 1000000", "a crop that no memory holds"),
        case("refused", f"{DETECT} --rois 0", "no RoIs"),
        case(
            "refused",
            f"{DETECT} --test-side 5000 --long-side 100",
            "a shorter side above the longer",
        ),
        case("refused", f"{DETECT} --warmup 100", "a warm-up longer than the training"),
        case("refused", SEGMENT, "a mask of colours", prepare=masks(_colours)),
        case("stops", SEGMENT, "a mask of another size", prepare=masks(_other_size)),
        case("stops", SEGMENT, "a class that is not listed", prepare=masks(_far_class)),
        case("stops", SEGMENT, "an empty mask", prepare=masks(lambda p: p.write_bytes(b""))),
        case("refused", SEGMENT, "a mask that is missing", prepare=masks(lambda p: p.unlink())),
        case("stops", SEGMENT, "an empty list of classes", prepare=classes("")),
        case("stops", SEGMENT, "one class", prepare=classes("a\n")),
        case("refused", SEGMENT, "a class twice", prepare=classes("a\na\nb\n")),
        case("refused", SEGMENT, "no masks", prepare=removed("masks/*/*", "masks")),
        case("refused", SEGMENT, "no validation set", prepare=removed("*/val/*", "masks")),
        case("refused", DETECT, "no annotations", prepare=removed("annotations/*", "coco")),
        case("refused", DETECT, "no validation set", prepare=removed("annotations/*val*", "coco")),
        case(
            "refused", DETECT, "an image is missing", prepare=removed("train2017/000.jpg", "coco")
        ),
        case(
            "refused",
            DETECT.replace("coco", "voc"),
            "no XML",
            prepare=removed("Annotations/*", "voc"),
        ),
        case(
            "refused",
            DETECT.replace("coco", "voc"),
            "no lists",
            prepare=removed("ImageSets/Main/*", "voc"),
        ),
        case(
            "refused",
            SEGMENT.replace("masks", "voc"),
            "no lists",
            prepare=removed("ImageSets/Segmentation/*", "voc"),
        ),
        case(
            "refused",
            SEGMENT.replace("masks", "voc"),
            "no masks",
            prepare=removed("SegmentationClass/*", "voc"),
        ),
    ]
