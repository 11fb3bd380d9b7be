"""Folders whose images lie beside annotations: images/ and masks/, Pascal VOC and COCO."""

import os
import re
from collections.abc import Collection
from typing import Final, NamedTuple, TypeVar

from lewel.data.sources.images import SUFFIXES
from lewel.data.sources.place import Place, below

TRAIN: Final = "train"
VALIDATION_SPLITS: Final = ("val", "test", "valid", "validation", "dev")  # the first with labels
MASK_SUFFIXES: Final = (".png", ".bmp", ".tif", ".tiff", ".gif")  # lossless formats only
IMAGES, MASKS = "images", "masks"
At = TypeVar("At", bound=Place)
_VOC = ("Annotations", "ImageSets", "SegmentationClass")  # beside JPEGImages/
_YEAR = re.compile(r"VOC\d{4}")


class Layout(NamedTuple):
    """The folders that hold the images, relative to the root."""

    folders: tuple[str, ...]  # of all images, where there is no split
    splits: dict[str, str]  # by the split's usual name
    note: str  # what is read as images
    every: dict[str, str]  # the folder of each split, also of those that are not trained on


def find_layout(root: Place, name: str) -> Layout | None:
    """The layout of a folder with annotations; None for a folder of images only."""
    return _masks(root, name) or _voc(root, name) or _coco(root, name)


def mask_folders(root: At, split: str) -> tuple[At, At] | None:
    """The folders of images and of their masks: images/SPLIT and masks/SPLIT, or below SPLIT/."""
    for images, masks in (
        (root / IMAGES / split, root / MASKS / split),
        (root / split / IMAGES, root / split / MASKS),
    ):
        if images.is_dir() and masks.is_dir():
            return images, masks
    return None


def coco_files(root: At) -> dict[str, At]:
    """The instances_*.json of a COCO folder, by split."""
    files = sorted((root / "annotations").glob("instances_*.json"))
    return {path.stem.removeprefix("instances_"): path for path in files}


def _masks(root: Place, name: str) -> Layout | None:
    """Images and masks, with or without splits."""
    places = {split: mask_folders(root, split) for split in ("", TRAIN, *VALIDATION_SPLITS)}
    found = {split: pair for split, pair in places.items() if pair is not None}
    # Two classes could have these names: then no image has a mask.
    if not any(_stems(images, SUFFIXES) & _stems(masks) for images, masks in found.values()):
        return None
    splits = {split: below(images, root) for split, (images, _) in found.items()}
    everywhere = (splits.pop(""),) if "" in splits else tuple(splits.values())
    images, masks = (below(folder, root) for folder in next(iter(found.values())))
    note = f"{name} has {images}/ and {masks}/: the masks are not read as images."
    return Layout(everywhere, splits, note, splits)


def _stems(folder: Place, suffixes: Collection[str] = MASK_SUFFIXES) -> set[str]:
    """The paths of the files below a folder, without their suffixes."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    return {os.path.splitext(below(path, folder))[0] for path in paths}


def voc_folders(root: At) -> list[At]:
    """The folders of Pascal VOC's years: the root itself, or some below it."""
    for folder in (root, root / "VOCdevkit"):
        years = sorted(path for path in folder.glob("VOC*") if _YEAR.fullmatch(path.name))
        for places in ([folder], years):
            found = [
                place
                for place in places
                if (place / "JPEGImages").is_dir() and any((place / n).is_dir() for n in _VOC)
            ]
            if found:
                return found
    return []


def _voc(root: Place, name: str) -> Layout | None:
    """Pascal VOC: one year, or a folder of years."""
    found = tuple(below(year / "JPEGImages", root) for year in voc_folders(root))
    note = f"{name} is Pascal VOC: only {_shown(found)} is read."
    return Layout(found, {}, note, {}) if found else None


def _coco(root: Place, name: str) -> Layout | None:
    """COCO: the folders of the splits that have an instances_*.json."""
    found = {split: _coco_folder(root, split) for split in coco_files(root)}
    folders = {split: folder for split, folder in found.items() if folder is not None}
    if not folders:  # images beside annotations/, which holds none
        return None
    train = [folder for split, folder in folders.items() if split.startswith(TRAIN)]
    every = tuple(dict.fromkeys(train or folders.values()))
    return Layout(every, {}, f"{name} is COCO: only {_shown(every)} is read.", folders)


def _coco_folder(root: Place, split: str) -> str | None:
    places = (split, f"{IMAGES}/{split}", IMAGES)
    return next((place for place in places if (root / place).is_dir()), None)


def _shown(folders: tuple[str, ...]) -> str:
    return " and ".join(f"{folder}/" for folder in folders)
