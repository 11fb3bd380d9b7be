"""Packs with masks and boxes: the same samples as from the folder, locally and by a URL."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.cli.main import run
from lewel.data.dense.boxes import BoxSamples, BoxSource
from lewel.data.dense.detection import open_boxes
from lewel.data.dense.masks import Masked, open_masks, validation_masks
from lewel.data.sources.attached import attached_files
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.open import open_data, open_every_split
from lewel.data.sources.source import annotation_files, digest_with_labels, image_files
from lewel.errors import UserError
from tests.data.dense.mask_layouts import make_folder
from tests.data.dense.mask_layouts import make_voc as make_voc_masks
from tests.data.dense.test_boxes import make_coco, make_voc, voc_object
from tests.data.pack.photos import pack
from tests.faults.storage import Faults, served


def make_voc_kit(root: Path) -> Path:
    """Two years with boxes, of which one has masks too."""
    cat, dog = voc_object("cat", (3, 4, 20, 21)), voc_object("dog", (1, 1, 9, 30))
    make_voc(root / "VOC2007", {"trainval": {"a": cat, "b": dog}, "test": {"t": cat + dog}})
    boxes = {"trainval": {"c": dog}, "train": {"c": dog}, "val": {"d": cat}}
    make_voc(root / "VOC2012", boxes)
    make_voc_masks(root / "VOC2012", {"train": ["m1", "m2", "m3"], "val": ["n1", "n2"]})
    return root


def make_masks(root: Path) -> Path:
    make_folder(root, {"train": 6, "val": 3})
    (root / "classes.txt").write_text("sky\ncar\ntree\n")
    return root


MAKERS: dict[str, Callable[[Path], Path]] = {
    "kit": make_voc_kit,
    "coco": make_coco,
    "masks": make_masks,
    "plain": lambda root: make_folder(root, {"": 12}),
}


@pytest.fixture(scope="module", params=MAKERS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kind of a data set, its folder and its pack."""
    folder = tmp_path_factory.mktemp(request.param)
    root = MAKERS[request.param](folder / "data")
    assert pack(root, folder / "shards", "--shard-images", "4") == 0
    return request.param, root, folder / "shards"


def assert_same_masks(one: Masked, other: Masked) -> None:
    assert (one.name, one.classes, len(one)) == (other.name, other.classes, len(other))
    for index in range(len(one)):
        assert one.describe(index) == other.describe(index)
        for mine, its in zip(one.pair(index), other.pair(index), strict=True):
            assert torch.equal(mine, its)


def assert_same_boxes(one: BoxSource, other: BoxSource) -> None:
    assert (one.name, one.classes, one.rule) == (other.name, other.classes, other.rule)
    assert (one.masked, len(one.notes)) == (other.masked, len(other.notes))
    samples = [BoxSamples(side, [24, 32], 64, 0, masks=side.masked) for side in (one, other)]
    for index in range(len(one)):
        assert one.describe(index) == other.describe(index)
        for mine, its in zip(one.objects(index), other.objects(index), strict=True):
            assert np.array_equal(mine, its)
        (image, target), (again, same) = (side.sample(1, index, []) for side in samples)
        assert torch.equal(image, again) and target.keys() == same.keys()
        assert all(torch.equal(target[key], same[key]) for key in target)
    if one.rule == "coco":
        assert one.coco_ground_truth() == other.coco_ground_truth()


def opened_masks(data: object, **given: Any) -> tuple[Masked, Masked]:
    return open_masks(str(data), **{"size": 32, "split": None, "limit": None, "seed": 0, **given})


def test_masks_and_boxes_are_those_of_the_folder(both: Any) -> None:
    kind, root, shards = both
    if kind in ("kit", "coco"):
        for given in ({}, {"train": "val2017", "val": "train2017"}) if kind == "coco" else ({},):
            folder, packed = (open_boxes(str(data), size=32, **given) for data in (root, shards))
            for one, other in zip(folder, packed, strict=True):
                assert_same_boxes(one, other)
                kept = np.array([len(one) - 1])
                assert_same_boxes(one.subset(kept), other.subset(kept))
    if kind != "coco":
        for given in ({}, {"limit": 2}, {"seed": 1}):
            for one, other in zip(
                opened_masks(root, **given), opened_masks(shards, **given), strict=True
            ):
                assert_same_masks(one, other)
    mine, its = (validation_masks(str(data), 32) for data in (root, shards))
    assert mine is not None and its is not None
    assert_same_masks(mine, its)


def test_a_url_is_read_like_its_folder(both: Any) -> None:
    kind, root, shards = both
    with served(shards, Faults()) as url:
        if kind == "coco":
            assert_same_boxes(open_boxes(str(root), size=32)[1], open_boxes(url, size=32)[1])
        else:
            assert_same_masks(opened_masks(root)[0], opened_masks(url)[0])


def test_images_are_those_that_the_folder_gives(both: Any, tmp_path: Path) -> None:
    _, root, shards = both
    folder, packed = (open_data(str(data), image_size=16).unlabelled for data in (root, shards))
    names = {packed.describe(index): packed.read(index) for index in range(len(packed))}
    assert sorted(names) == sorted(folder.describe(index) for index in range(len(folder)))
    for index in range(len(folder)):
        assert torch.equal(names[folder.describe(index)], folder.read(index))
    assert pack(shards, tmp_path / "again", "--shard-images", "4") == 0  # a pack of a pack
    mine, its = (validation_masks(str(data), 32) for data in (shards, tmp_path / "again"))
    assert mine is not None and its is not None
    assert_same_masks(mine, its)


def test_every_split_is_that_of_the_folder(both: Any) -> None:
    _, root, shards = both
    notes: list[str] = []
    folder, packed = (open_every_split(str(data), 16, notes) for data in (root, shards))
    assert list(folder) == list(packed)
    for split, source in folder.items():
        names = [source.describe(index) for index in range(len(source))]
        found = {packed[split].describe(n): packed[split].read(n) for n in range(len(source))}
        assert len(packed[split]) == len(names) and names == sorted(found)
        assert all(torch.equal(found[name], source.read(n)) for n, name in enumerate(names))


def test_results_of_a_pack_are_known_by_its_content(tmp_path: Path) -> None:
    root = make_masks(tmp_path / "data")
    assert pack(root, tmp_path / "one") == 0
    train = opened_masks(tmp_path / "one")[0]
    assert not annotation_files(train) and not list(image_files(train))
    masks = root / "masks" / "train"
    (masks / "train00.png").write_bytes((masks / "train01.png").read_bytes())
    assert pack(root, tmp_path / "two") == 0
    other = opened_masks(tmp_path / "two")[0]
    assert digest_with_labels(train) != digest_with_labels(other)
    assert digest_with_labels(train) == digest_with_labels(opened_masks(tmp_path / "one")[0])


def test_results_of_boxes_are_known_by_the_packed_images(tmp_path: Path) -> None:
    root = make_voc_kit(tmp_path / "data")
    assert pack(root, tmp_path / "one") == 0
    Image.new("RGB", (40, 30), (9, 9, 9)).save(root / "VOC2007" / "JPEGImages" / "a.jpg")
    assert pack(root, tmp_path / "two") == 0
    one, other = (open_boxes(str(tmp_path / name), size=32)[0] for name in ("one", "two"))
    assert digest_with_labels(one) != digest_with_labels(other)


def test_wrong_uses_are_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_masks(tmp_path / "data")
    assert pack(root, tmp_path / "q", "--size", "64") == 2
    assert "--size 64 changes images" in capsys.readouterr().err
    assert not (tmp_path / "q").exists()
    assert pack(root, tmp_path / "bare", "--images-only", "--size", "16") == 0
    index = json.loads((tmp_path / "bare" / "lewel-index.json").read_text())
    assert list(index["shards"]) == ["train"] and "folder" not in index
    with pytest.raises(UserError, match="bare was packed without masks and boxes"):
        opened_masks(tmp_path / "bare")
    assert validation_masks(str(tmp_path / "bare"), 32) is None
    capsys.readouterr()
    assert pack(root, tmp_path / "shards") == 0
    assert "packed 6 images" in capsys.readouterr().out  # files of annotations are none
    with pytest.raises(UserError, match="holds no boxes in a known format"):
        open_boxes(str(tmp_path / "shards"), size=32)
    before = (tmp_path / "shards" / "annotations-000000.tar").read_bytes()
    (root / "classes.txt").write_text("sky\ncar\nlawn\n")
    assert pack(root, tmp_path / "shards") == 2
    assert "annotations digest was" in capsys.readouterr().err
    assert (tmp_path / "shards" / "annotations-000000.tar").read_bytes() == before
    shard = tmp_path / "shards" / "annotations-000000.tar"
    shard.write_bytes(before[:5000] + bytes(len(before) - 5000))
    assert run(["pack", "--check", str(tmp_path / "shards")]) == 1


def test_hidden_files_are_not_packed(tmp_path: Path) -> None:
    root = make_coco(tmp_path / "coco")
    split = root / "train2017"
    image = next(split.iterdir())
    for hidden in (split / f".{image.name}", split / ".thumbs" / image.name):
        hidden.parent.mkdir(exist_ok=True)
        hidden.write_bytes(image.read_bytes())
    names = attached_files(root, [])
    assert f"train2017/{image.name}" in names and not [name for name in names if "/." in name]


def test_an_annotation_that_cannot_be_read_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_coco(tmp_path / "coco")
    read = Path.read_bytes

    def denied(path: Path) -> bytes:
        if path.name.startswith("instances_val"):
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert pack(root, tmp_path / "out") == 2
    assert "cannot be read (permission denied)" in capsys.readouterr().err


@pytest.mark.parametrize("again", [False, True], ids=["packed", "packed-again"])
def test_a_corrupt_image_is_one_in_a_pack_as_in_its_folder(tmp_path: Path, again: bool) -> None:
    cat = voc_object("cat", (3, 4, 20, 21))
    names = [f"{number:02d}" for number in range(30)]
    voc = make_voc(
        tmp_path / "VOC2012",
        {"train": dict.fromkeys(names[:26], cat), "val": dict.fromkeys(names[26:], cat)},
    )
    masks = make_folder(tmp_path / "masks", {"train": 26, "val": 4})
    (voc / "JPEGImages" / "03.jpg").write_bytes(b"no image")
    (masks / "images" / "train" / "train03.png").write_bytes(b"no image")
    for root in (voc, masks):
        out = tmp_path / f"{root.name}-shards"
        assert pack(root, out) == 0
        if again:
            assert pack(out, tmp_path / f"{root.name}-more", "--keep") == 0
            out = tmp_path / f"{root.name}-more"
        for data in (root, out):
            opened = open_boxes(str(data), size=32) if root is voc else opened_masks(data)
            assert [len(side) for side in opened] == [26, 4]
            with pytest.raises(UnreadableImage):
                opened[0].read(3)
            opened[0].read(4)
        assert len(open_data(str(out), image_size=16).unlabelled) == 29 - 4 * (root is masks)
        digest_with_labels(opened[0])  # known by its content
