"""Images with masks from Pascal VOC, from folders and from scenes, and their errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.data.dense.masks import Masked, open_masks, read_mask
from lewel.data.dense.scene_masks import SceneMasks
from lewel.data.dense.voc import CLASSES, find_voc, palette
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.scenes import draw_scene
from lewel.data.sources.source import digest_with_labels
from lewel.errors import StorageError, UserError
from tests.data.dense.mask_layouts import make_folder, make_voc, save_pair


def opened(data: Path | str, **given: object) -> tuple[Masked, Masked]:
    return open_masks(str(data), **{"size": 32, "split": None, "limit": None, "seed": 0, **given})


def names(source: Masked) -> list[str]:
    return [Path(source.describe(index)).stem for index in range(len(source))]


def test_voc_is_found_from_any_of_its_folders(tmp_path: Path) -> None:
    year = tmp_path / "data" / "VOCdevkit" / "VOC2012"
    make_voc(year, {"train": ["a", "b", "c"], "val": ["d", "e"]})
    (year.parent / "VOC2007").mkdir()
    for place in (year, year.parent, tmp_path / "data"):
        assert find_voc(place) == year
        train, val = opened(place)
        assert (names(train), names(val)) == (["a", "b", "c"], ["d", "e"])
        assert train.name == "VOC2012-train" and train.classes == CLASSES
    image, mask = train.pair(1)
    assert image.shape == (3, 20, 30) and image.dtype == mask.dtype == torch.uint8
    assert mask.unique().tolist() == [0, 2, 255]
    assert find_voc(tmp_path) is None


def test_train_aug_is_used_if_it_exists(tmp_path: Path) -> None:
    make_voc(tmp_path, {"train": ["a", "b"], "val": ["d"], "trainval": ["a", "d"]})
    with pytest.raises(UserError, match=r"no split 'train_aug'.*the lists there are train, trainv"):
        opened(tmp_path, split="train_aug")
    make_voc(tmp_path, {"train_aug": ["x", "y", "z"]}, "SegmentationClassAug")
    assert names(opened(tmp_path)[0]) == ["x", "y", "z"]
    assert names(opened(tmp_path, split="train")[0]) == ["a", "b"]
    with pytest.raises(UserError, match=r"1 images of the split 'trainval' are also in val"):
        opened(tmp_path, split="trainval")


def test_lists_that_are_empty_or_name_missing_files(tmp_path: Path) -> None:
    make_voc(tmp_path, {"train": ["a", "b", "c"], "val": ["d"]})
    (tmp_path / "JPEGImages" / "b.jpg").unlink()
    (tmp_path / "SegmentationClass" / "c.png").unlink()
    with pytest.raises(UserError, match=r"2 of the 6 images and masks .*JPEGImages/b\.jpg"):
        opened(tmp_path)
    (tmp_path / "ImageSets" / "Segmentation" / "train.txt").write_text("a\nb\na\n")
    with pytest.raises(UserError, match=r"train\.txt lists a 2 times: expected each image once"):
        opened(tmp_path)
    (tmp_path / "ImageSets" / "Segmentation" / "train.txt").write_text("\n")
    with pytest.raises(UserError, match=r"train\.txt is empty"):
        opened(tmp_path)


def test_masks_that_do_not_fit(tmp_path: Path) -> None:
    make_voc(tmp_path, {"train": ["a", "b", "c", "d"], "val": ["e"]})
    folder = tmp_path / "SegmentationClass"
    Image.new("P", (30, 19)).save(folder / "a.png")
    Image.new("L", (30, 20), 37).save(folder / "b.png")
    Image.new("RGB", (30, 20)).save(folder / "c.png")
    (folder / "d.png").write_bytes(b"no picture")
    train, _ = opened(tmp_path)
    for index, message in enumerate(
        ("30 x 19 pixels, the image 30 x 20", "class 37, expected 0 to 20", "colours", "d.png")
    ):
        with pytest.raises(UnreadableImage, match=message):
            train.pair(index)


def test_a_folder_with_splits_above_or_below(tmp_path: Path) -> None:
    below = make_folder(tmp_path / "below", {"train": 5, "val": 2})
    train, val = opened(below)
    assert (len(train), len(val), train.classes) == (5, 2, ("0", "1", "2"))
    above = tmp_path / "above"
    for split, count in (("train", 4), ("test", 3)):
        for index in range(count):
            where = above / split
            save_pair(where / "images" / f"{index}.jpg", where / "masks" / f"{index}.png", 1)
    (above / "classes.txt").write_text("ground\nthing\nnever\n")
    train, val = opened(above)
    assert (len(train), len(val), val.classes) == (4, 3, ("ground", "thing", "never"))
    assert train.pair(0)[1].unique().tolist() == [0, 1, 255]


def test_a_folder_without_splits_holds_out_a_tenth(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, {"": 30})
    train, val = opened(folder)
    assert len(val) == 3 and not set(names(train)) & set(names(val))
    assert names(opened(folder, seed=1)[1]) != names(val)
    few, same = opened(folder, limit=5)
    assert len(few) == 5 and set(names(few)) < set(names(train)) and names(same) == names(val)
    same_place = names(train).index(names(few)[2])
    assert torch.equal(few.pair(2)[1], train.pair(same_place)[1])


def test_folders_with_something_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        opened(tmp_path / "none")
    with pytest.raises(UserError, match="has no masks: expected"):
        opened(tmp_path)
    folder = make_folder(tmp_path / "a", {"": 6})
    (folder / "masks" / "02.png").unlink()
    with pytest.raises(UserError, match=r"1 of 6 files have no mask in .*02\.png"):
        opened(folder)
    (folder / "images" / "02.png").unlink()
    (folder / "images" / "03.png").unlink()
    with pytest.raises(UserError, match=r"1 of 5 files have no image in"):
        opened(folder)
    with pytest.raises(UserError, match="has no validation set: expected"):
        opened(make_folder(tmp_path / "b", {"train": 3}))
    twice = make_folder(tmp_path / "c", {"": 6})
    (twice / "classes.txt").write_text("sky\ncat\nsky\n")
    with pytest.raises(UserError, match=r"classes\.txt names the class sky twice"):
        opened(twice)
    for code in ("utf-16", "utf-16-le"):  # with and without a BOM
        (twice / "classes.txt").write_text("sky\ncat\ndog\n", encoding=code)
        with pytest.raises(UserError, match=r"classes\.txt is no UTF-8 text .*: save it as UTF-8"):
            opened(twice)
    (twice / "classes.txt").write_text("sky\ncat\ndog\n", encoding="utf-8-sig")
    assert opened(twice)[0].classes == ("sky", "cat", "dog")


def test_scenes_have_the_class_of_each_pixel() -> None:
    source = SceneMasks("val", 48, 20)
    for index in range(5):
        scene = draw_scene(0, "val", index, 48)
        image, mask = source.pair(index)
        assert np.array_equal(image.permute(1, 2, 0).numpy(), scene.image)
        for number in range(1, 11):
            expected = scene.masks[scene.classes == number].any(0)
            assert np.array_equal(mask.numpy() == number, expected)
    train, val = opened("scenes", limit=7)
    assert (len(train), len(val), len(train.classes)) == (7, 500, 11)


def test_the_palette_is_vocs() -> None:
    colours = palette()
    for number, colour in {
        0: (0, 0, 0),
        1: (128, 0, 0),
        2: (0, 128, 0),
        8: (64, 0, 0),
        15: (192, 128, 128),
        20: (0, 64, 128),
        255: (224, 224, 192),
    }.items():
        assert tuple(colours[number]) == colour


def test_changed_masks_change_the_fingerprint(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"train": 3, "val": 2})
    before = [digest_with_labels(split) for split in opened(root)]
    assert before == [digest_with_labels(split) for split in opened(root)]
    mask = np.arange(20 * 30, dtype=np.uint8).reshape(20, 30) % 3
    Image.fromarray(mask).save(root / "masks" / "train" / "train00.png")
    after = [digest_with_labels(split) for split in opened(root)]
    assert after[0] != before[0] and after[1] == before[1]


@pytest.mark.parametrize("content", [b"", b"no image"])
def test_a_mask_that_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.png").write_bytes(content)
    with pytest.raises(UnreadableImage) as found:
        read_mask(tmp_path / "1.png")
    assert str(found.value) == "the mask 1.png is empty or no image"


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "data", {"train": 3, "val": 2})
    image = next(file for file in sorted(root.rglob("images/**/*")) if file.is_file())
    image.with_suffix(".bmp").write_bytes(image.read_bytes())
    names = " and ".join(sorted((image.name, image.with_suffix(".bmp").name)))
    with pytest.raises(UserError, match=f"{names}, two files of one name: remove one"):
        open_masks(str(root), size=16, split=None, limit=None, seed=0)


def test_an_outage_is_no_corrupt_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(path: Path) -> bytes:
        raise StorageError("storage has not answered")

    monkeypatch.setattr(Path, "read_bytes", silent)
    with pytest.raises(StorageError):
        read_mask(tmp_path / "mask.png")
