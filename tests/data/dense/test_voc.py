"""Validation sets with masks: Pascal VOC from any of its folders, and scenes."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lewel.data.dense.masks import validation_masks
from lewel.data.dense.scene_masks import SceneMasks
from lewel.data.dense.voc import CLASSES, find_voc
from lewel.data.sources.scenes import draw_scene


def voc_tree(root: Path, names: tuple[str, ...] = ("a", "b"), size: tuple[int, int] = (40, 30)):
    """A VOC 2012 of noise; the object of class 1 + i is the left half of image i."""
    year = root / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (year / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number, name in enumerate(names):
        pixels = rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(year / "JPEGImages" / f"{name}.jpg")
        mask = np.zeros((size[1], size[0]), np.uint8)
        mask[:, : size[0] // 2] = 1 + number % 20
        mask[0, 0] = 255
        save_mask(year / "SegmentationClass" / f"{name}.png", mask)
    (year / "ImageSets/Segmentation/val.txt").write_text("\n".join(names) + "\n")
    return year


def save_mask(path: Path, mask: np.ndarray) -> None:
    picture = Image.fromarray(mask, "P")
    picture.putpalette(np.random.default_rng(1).integers(0, 255, 768, dtype=np.uint8).tobytes())
    picture.save(path)


def test_images_and_masks_are_found_from_any_root(tmp_path: Path) -> None:
    year = voc_tree(tmp_path)
    for root in (tmp_path, tmp_path / "VOCdevkit", year):
        assert find_voc(root) == year
        voc = validation_masks(str(root), 32)
        assert voc is not None
        assert len(voc) == 2 and voc.describe(1) == "JPEGImages/b.jpg"
        image, mask = voc.pair(1)
        assert image.shape == (3, 30, 40)
        assert mask.dtype == torch.uint8 and mask.shape == (30, 40)
        assert mask[0, 0] == 255 and (mask[1:, :20] == 2).all() and (mask[:, 20:] == 0).all()
    assert len(CLASSES) == 21 and CLASSES[15] == "person"
    assert find_voc(tmp_path / "elsewhere") is None
    assert validation_masks(str(year / "JPEGImages"), 32) is None


def test_scenes_have_the_masks_of_their_class_objects() -> None:
    scenes = SceneMasks("val", size=32, length=5)
    for index in range(5):
        scene, (image, mask) = draw_scene(0, "val", index, 32), scenes.pair(index)
        assert np.array_equal(mask.numpy() > 0, scene.masks.any(0))
        assert set(np.unique(mask)) - {0} == set(scene.classes.tolist())
        assert np.array_equal(image.permute(1, 2, 0).numpy(), scene.image)
