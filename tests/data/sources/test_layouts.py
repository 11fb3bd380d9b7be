"""Folders with annotations: their images are images, their masks are masks, for every command."""

import re
import shutil
from pathlib import Path

import pytest

from lewel.data.dense.masks import validation_masks
from lewel.data.sources.open import open_data
from tests.data.dense.mask_layouts import make_folder, make_voc
from tests.data.dense.test_boxes import coco_file, make_coco, save_image


def annotated(root: Path, kind: str) -> tuple[Path, list[str], int]:
    """A folder with annotations, its images for pre-training, and how many have masks."""
    if kind == "voc":
        make_voc(root / "VOC2012", {"train": ["a", "b"], "val": ["c", "d"]})
        return root, [f"VOC2012/JPEGImages/{name}.jpg" for name in "abcd"], 2
    if kind == "voc year":
        make_voc(root, {"train": ["a", "b"], "val": ["c", "d"]})
        return root, [f"JPEGImages/{name}.jpg" for name in "abcd"], 2
    if kind == "coco":
        return make_coco(root), ["train2017/7.jpg", "train2017/9.jpg"], 2
    if kind == "splits inside":
        make_folder(root, {"train": 3, "val": 2})
        return root, [f"images/train/train0{n}.png" for n in range(3)], 2
    make_folder(root, {"": 3})
    if kind == "splits outside":
        make_folder(root / "more", {"": 2})
        shutil.move(root / "more", root / "val")
        for name in ("images", "masks"):
            (root / "train").mkdir(exist_ok=True)
            shutil.move(root / name, root / "train" / name)
        return root, [f"train/images/0{n}.png" for n in range(3)], 2
    return root, [f"images/0{n}.png" for n in range(3)], 3


KINDS = ("flat", "splits inside", "splits outside", "voc", "voc year", "coco")


@pytest.mark.parametrize("kind", KINDS)
def test_annotations_are_no_images(tmp_path: Path, kind: str) -> None:
    root, images, masks = annotated(tmp_path / "set", kind)
    data = open_data(str(root), image_size=16)
    assert [data.unlabelled.describe(n) for n in range(len(data.unlabelled))] == images
    assert data.train is None and data.unlabelled.labels is None
    assert re.search("the masks are not read as images|only .* is read", data.notes[0])
    masked = validation_masks(str(root), 16)
    assert masked is not None and len(masked) == masks
    image, mask = masked.pair(0)
    assert image.shape[1:] == mask.shape and 0 < (mask > 0).sum() < mask.numel()


def test_class_folders_with_these_names_stay_classes(tmp_path: Path) -> None:
    for name in ("images", "masks"):
        for index in range(3):
            save_image(tmp_path / name / f"{name}{index}.png")
    assert open_data(str(tmp_path), image_size=16).unlabelled.classes == ("images", "masks")
    assert validation_masks(str(tmp_path), 16) is None


def test_classes_of_images_with_masks_are_kept(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", {"cat": 3, "dog": 3})
    assert open_data(str(root), image_size=16).unlabelled.classes == ("cat", "dog")


def test_crowds_of_coco_are_ignored(tmp_path: Path) -> None:
    annotations = coco_file()["annotations"]
    annotations[2]["segmentation"] = [[20.0, 5.0, 35.0, 5.0, 35.0, 25.0, 20.0, 25.0]]  # the crowd
    masked = validation_masks(str(make_coco(tmp_path, annotations=annotations)), 16)
    assert masked is not None
    mask = masked.pair(0)[1]
    assert mask[12, 22] == 1 and mask[12, 30] == 255 and mask[29, 39] == 0
