"""Pascal VOC's masks: read as they are, and refused by name where they are not."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lewel.data.masked import MaskedScenes, open_masked
from lewel.data.scenes import draw_scene
from lewel.data.voc import CLASSES, VOC, find_voc
from lewel.errors import UserError


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


def test_images_and_masks_are_read_from_wherever_the_root_is(tmp_path: Path) -> None:
    year = voc_tree(tmp_path)
    for root in (tmp_path, tmp_path / "VOCdevkit", year):
        assert find_voc(root) == year
        voc = VOC(root)
        assert len(voc) == 2 and voc.describe(1) == "JPEGImages/b.jpg"
        assert voc.read(1).shape == (3, 30, 40)
        mask = voc.mask(1)
        assert mask.dtype == np.uint8 and mask.shape == (30, 40)
        assert mask[0, 0] == 255 and (mask[1:, :20] == 2).all() and (mask[:, 20:] == 0).all()
    assert len(CLASSES) == 21 and CLASSES[15] == "person"
    assert find_voc(tmp_path / "elsewhere") is None
    assert isinstance(open_masked(str(tmp_path), 32), VOC)
    assert open_masked(str(year / "JPEGImages"), 32) is None


def test_what_is_wrong_is_named_with_its_file(tmp_path: Path) -> None:
    year = voc_tree(tmp_path, ("a", "b", "c", "d"))
    masks = year / "SegmentationClass"
    save_mask(masks / "a.png", np.zeros((20, 40), np.uint8))
    wrong = np.zeros((30, 40), np.uint8)
    wrong[3, 4] = 21
    save_mask(masks / "b.png", wrong)
    Image.new("RGB", (40, 30)).save(masks / "c.png")
    (masks / "d.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    voc = VOC(year)
    for index, words in enumerate(
        (r"a\.png has 40 x 20 .* 40 x 30", r"b\.png .*class 21", r"c\.png .*colours", r"d\.png")
    ):
        with pytest.raises(UserError, match=words):
            voc.mask(index)
    (year / "JPEGImages" / "c.jpg").unlink()
    with pytest.raises(UserError, match=r"c\.jpg does not exist, but .*val\.txt lists c"):
        VOC(year)
    (year / "ImageSets/Segmentation/val.txt").write_text("")
    with pytest.raises(UserError, match=r"val\.txt is empty"):
        VOC(year)
    with pytest.raises(UserError, match=r"train\.txt can't be read"):
        VOC(year, "train")
    with pytest.raises(UserError, match="is no Pascal VOC"):
        VOC(tmp_path / "elsewhere")


def test_scenes_have_the_masks_of_their_class_objects() -> None:
    scenes = MaskedScenes("val", size=32, length=5)
    for index in range(5):
        scene, mask = draw_scene(0, "val", index, 32), scenes.mask(index)
        assert np.array_equal(mask > 0, scene.masks.any(0))
        assert set(np.unique(mask)) - {0} == set(scene.classes.tolist())
        assert np.array_equal(scenes.read(index).permute(1, 2, 0).numpy(), scene.image)
