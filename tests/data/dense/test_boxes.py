"""Boxes and masks from VOC's XML, COCO's JSON and the scenes; the samples of training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as reference

from lewel.data.dense.boxes import BoxSamples, flipped, limited, padded, resized, with_objects
from lewel.data.dense.coco import open_coco
from lewel.data.dense.coco_masks import ObjectMasks
from lewel.data.dense.detection import open_boxes
from lewel.data.dense.instances import encode, mask_fault, rasterise
from lewel.data.dense.scene_boxes import SceneBoxes
from lewel.data.dense.voc_boxes import CLASSES, open_voc
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import digest, digest_with_labels
from lewel.errors import UserError


def save_image(path: Path, width: int = 40, height: int = 30) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def voc_object(
    name: str, box: tuple[int, int, int, int], difficult: int = 0, more: str = ""
) -> str:
    corners = "".join(
        f"<{tag}>{value}</{tag}>"
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return (
        f"<object><name>{name}</name><difficult>{difficult}</difficult>{more}"
        f"<bndbox>{corners}</bndbox></object>"
    )


PART = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>"
PART += "</bndbox></part>"


def make_voc(root: Path, splits: dict[str, dict[str, str]]) -> Path:
    """A year of VOC: split -> image -> the objects' XML."""
    for split, images in splits.items():
        main = root / "ImageSets" / "Main"
        main.mkdir(parents=True, exist_ok=True)
        (main / f"{split}.txt").write_text("\n".join(images) + "\n")
        for name, objects in images.items():
            save_image(root / "JPEGImages" / f"{name}.jpg")
            (root / "Annotations").mkdir(exist_ok=True)
            (root / "Annotations" / f"{name}.xml").write_text(f"<annotation>{objects}</annotation>")
    return root


def test_voc_reads_the_years_and_splits_that_exist(tmp_path: Path) -> None:
    kit = tmp_path / "VOCdevkit"
    cat, dog = voc_object("cat", (1, 1, 10, 20)), voc_object("dog", (5, 5, 30, 25), 1, PART)
    make_voc(kit / "VOC2007", {"trainval": {"a": cat, "b": dog}, "test": {"t": cat + dog}})
    make_voc(kit / "VOC2012", {"trainval": {"c": dog}, "train": {"c": dog}, "val": {"d": cat}})
    train, val = open_voc(kit, None, None, None)
    assert [train.describe(i) for i in range(3)] == [
        "VOC2007/JPEGImages/a.jpg", "VOC2007/JPEGImages/b.jpg", "VOC2012/JPEGImages/c.jpg"
    ]  # fmt: skip
    assert (train.name, val.rule, len(val)) == ("voc0712", "voc 11-point", 1)
    assert train.classes == CLASSES and len(CLASSES) == 20
    found = val.objects(0)
    assert found.boxes.tolist() == [[0, 0, 10, 20], [4, 4, 30, 25]]  # from pixel 1 on
    assert found.classes.tolist() == [1 + CLASSES.index("cat"), 1 + CLASSES.index("dog")]
    assert found.difficult.tolist() == [False, True]
    for root in (kit / "VOC2012", tmp_path):
        train, val = open_voc(root, "2012/train", "2012/val", None)
        assert (len(train), len(val), val.rule) == (1, 1, "voc area")
    train, val = open_voc(kit / "VOC2012", None, None, None)
    assert (train.describe(0), val.describe(0)) == ("JPEGImages/c.jpg", "JPEGImages/d.jpg")
    assert train.name == "voc12"
    assert train.subset(np.array([0])).objects(0).classes.tolist() == [12]


def test_errors_in_voc_are_reported(tmp_path: Path) -> None:
    cat, flat = voc_object("cat", (1, 1, 10, 20)), voc_object("cat", (9, 5, 9, 20))
    root = make_voc(tmp_path / "VOC2012", {"train": {"a": cat + flat}, "val": {"b": cat}})
    train, val = open_voc(root, None, None, None)
    assert len(train.objects(0).boxes) == 1 and not val.notes
    assert (
        train.notes[0].startswith("1 boxes without area are left out") and "a.xml" in train.notes[0]
    )
    with pytest.raises(UserError, match="has no split test"):
        open_voc(root, None, "test", None)
    (root / "ImageSets/Main/both.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"1 images of .* both in the training and the validation"):
        open_voc(root, "both", "val", None)
    (root / "ImageSets/Main/twice.txt").write_text("a\nb\na\n")
    for split in ("twice", "train+train"):
        with pytest.raises(UserError, match=r"The split .* of .* lists a 2 times: expected each"):
            open_voc(root, split, split, None)
    (root / "ImageSets/Main/marked.txt").write_text("a\n", encoding="utf-8-sig")
    assert open_voc(root, "marked", None, None)[0].describe(0) == "JPEGImages/a.jpg"
    unknown = voc_object("unicorn", (1, 1, 4, 4))
    (root / "Annotations/b.xml").write_text(f"<annotation>{cat + unknown * 2}</annotation>")
    with pytest.raises(UserError, match=r"2 objects of .* unknown class.*/b\.xml \('unicorn'\)"):
        open_voc(root, None, None, None)
    assert len(open_voc(root, None, None, ["unicorn"])[1].objects(0).boxes) == 2
    (root / "Annotations/b.xml").write_text("")
    with pytest.raises(UserError, match=r"b\.xml cannot be read .*it is empty"):
        open_voc(root, None, None, None)
    (root / "JPEGImages/a.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of the 1 images .* JPEGImages/a\.jpg"):
        open_voc(root, None, None, None)


TRIANGLE = [[4.0, 4.0, 24.0, 4.0, 4.0, 24.0]]


def coco_file(**changes: Any) -> dict[str, Any]:
    square = np.zeros((30, 40), bool)
    square[10:20, 5:25] = True
    rle = encode(square[None])[0]
    runs = {"size": [30, 40], "counts": [5 * 30 + 10, *[10, 20] * 19, 10, 15 * 30 + 10]}
    # The last two have no area: one by itself, one inside the image.
    boxes = [[4, 4, 20, 20], [5, 10, 20, 10], [0, 0, 30, 30], [3, 3, 0, 5], [40, 3, 5, 5]]
    shapes = [TRIANGLE, rle, runs, TRIANGLE, TRIANGLE]
    annotations = [
        {
            "id": 10 + n, "image_id": 7, "category_id": (90, 3)[n % 2], "bbox": box, "area": 9,
            "iscrowd": int(n == 2), "segmentation": shape,
        }
        for n, (box, shape) in enumerate(zip(boxes, shapes, strict=True))
    ]  # fmt: skip
    images = [{"id": n, "file_name": f"{n}.jpg", "height": 30, "width": 40} for n in (9, 7)]
    categories = [{"id": 90, "name": "brush"}, {"id": 3, "name": "car"}]
    return {"images": images, "annotations": annotations, "categories": categories, **changes}


def changed(key: str, **values: Any) -> str:
    """The JSON with another first image or annotation."""
    content = coco_file()
    content[key][0].update(values)
    return json.dumps(content)


def make_coco(root: Path, **changes: Any) -> Path:
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split in ("train2017", "val2017"):
        file = root / "annotations" / f"instances_{split}.json"
        file.write_text(json.dumps(coco_file(**changes)))
        for name in ("7.jpg", "9.jpg"):
            save_image(root / split / name)
    return root


def test_coco_reads_boxes_polygons_and_rle(tmp_path: Path) -> None:
    train, val = open_coco(make_coco(tmp_path / "some"), None, None, None)
    assert train.describe(0) == "train2017/7.jpg" and len(train) == 2 and train.name == "some"
    assert train.classes == ("car", "brush")  # by their ids
    found = train.objects(0)  # no crowd, and no boxes without area
    assert found.boxes.tolist() == [[4, 4, 24, 24], [5, 10, 25, 20]]
    assert found.classes.tolist() == [2, 1]
    assert train.notes[0].startswith(
        "2 boxes without area inside their image are left out, for exam"
    )
    assert "annotation 13 of" in train.notes[0] and train.counts().tolist() == [2, 0]
    triangle, square = train.masks(0, 30, 40)
    assert square.sum() == 200 and square[10:20, 5:25].all()
    theirs = reference.decode(reference.frPyObjects(TRIANGLE, 30, 40))[..., 0]
    assert np.array_equal(triangle, theirs.astype(bool))
    double, _ = train.masks(0, 60, 80)
    assert double.sum() == pytest.approx(4 * triangle.sum(), rel=0.1)
    ground_truth = val.coco_ground_truth()
    assert [one["image_id"] for one in ground_truth["annotations"]] == [0] * 5
    assert [one["iscrowd"] for one in ground_truth["annotations"]] == [0, 0, 1, 0, 0]
    assert len(with_objects(train)) == 1
    assert "1 images without objects" in with_objects(train).notes[-1]
    assert train.subset(np.array([1])).describe(0) == "train2017/9.jpg"
    only, _ = open_coco(tmp_path / "some", None, None, ["car"])
    assert only.objects(0).classes.tolist() == [1]


def test_coco_without_shapes_has_no_masks(tmp_path: Path) -> None:
    bare = coco_file()["annotations"]
    for one in bare:
        del one["segmentation"]
    train, _ = open_coco(make_coco(tmp_path, annotations=bare), None, None, None)
    assert not train.masked and open_coco(make_coco(tmp_path), None, None, None)[0].masked


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (None, "neither a list of polygons nor RLE"),
        ("a word", "neither a list of polygons nor RLE"),
        ([4, 4, 24, 4, 4, 24], "neither a list of polygons nor RLE"),
        ([], "three points or more"),
        ([[]], "three points or more"),
        ([[4, 4, 24, 4, 4, 24, 5]], "three points or more"),
        ([[4, 4, 24, 4]], "three points or more"),
        ([[4, 4, 24, 4, 4, "24"]], "no number"),
        ([[4, 4, 1e12, 4, 4, 24]], r"a point at 1e\+12 is far outside"),
        ({"counts": [1200]}, r"RLE is of size None, expected \[30, 40\]"),
        ({"size": [40, 30], "counts": [1200]}, r"RLE is of size \[40, 30\]"),
        ({"size": [30, 40], "counts": [1201]}, "has 1201 pixels, expected 1200"),
        ({"size": [30, 40], "counts": [1201, -1]}, "no counts"),
        ({"size": [30, 40], "counts": 7}, "no counts"),
        ({"size": [30, 40], "counts": "nonsense"}, "no counts"),
        ({"size": [30, 40], "counts": "01"}, "has 1 pixels, expected 1200"),
    ],
)
def test_masks_that_cannot_be_drawn_are_refused(tmp_path: Path, shape: Any, message: str) -> None:
    train, val = open_coco(make_coco(tmp_path), None, None, None)
    train.check_masks()
    val.check_masks()
    (tmp_path / "annotations/instances_val2017.json").write_text(
        changed("annotations", segmentation=shape)
    )
    _, val = open_coco(tmp_path, None, None, None)  # boxes need none
    with pytest.raises(UserError, match=rf"val2017\.json: annotation 10 has no mask .*{message}"):
        val.check_masks()
    with pytest.raises(UnreadableImage, match=message):
        ObjectMasks(val).pair(0)


def test_random_masks_have_no_fault() -> None:
    for seed in range(20):
        bits = np.random.default_rng(seed).random((57, 91)) < seed / 19
        assert mask_fault(encode(bits[None])[0], (57, 91)) is None


def test_coco_with_images_in_both_sets_is_refused(tmp_path: Path) -> None:
    root = make_coco(tmp_path)
    (root / "train2017").rename(root / "images")
    (root / "val2017").rename(root / "unused")
    with pytest.raises(UserError, match=r"2 images of .* both in .*, for example images/7\.jpg"):
        open_coco(root, None, None, None)
    assert len(open_coco(root, "val2017", "val2017", None)[0]) == 2


def test_annotations_are_included_in_the_fingerprint(tmp_path: Path) -> None:
    before = open_coco(make_coco(tmp_path), None, None, None)[0]
    moved = coco_file()["annotations"]
    moved[0]["bbox"] = [4, 4, 20, 21]
    after = open_coco(make_coco(tmp_path, annotations=moved), None, None, None)[0]
    assert digest(before) == digest(after)
    assert digest_with_labels(before) != digest_with_labels(after)
    wider = [{**one, "width": 41} for one in coco_file()["images"]]
    after = open_coco(make_coco(tmp_path, images=wider), None, None, None)[0]
    assert digest_with_labels(before) != digest_with_labels(after)
    dog, larger = (voc_object("dog", (1, 1, 10, side)) for side in (20, 21))
    kinds = []
    for objects in (dog, larger):
        root = make_voc(tmp_path / "VOC2012", {"train": {"a": objects}, "val": {"b": dog}})
        kinds.append(open_voc(root, None, None, None)[0])
    assert digest(kinds[0]) == digest(kinds[1])
    assert digest_with_labels(kinds[0]) != digest_with_labels(kinds[1])


def test_an_image_of_another_size_than_its_annotations_is_corrupt(tmp_path: Path) -> None:
    turned = [{**one, "width": 30, "height": 40} for one in coco_file()["images"]]
    size = "<size><width>30</width><height>40</height></size>"
    objects = size + voc_object("dog", (1, 1, 10, 20))
    voc = make_voc(tmp_path / "VOC2012", {"train": {"a": objects}, "val": {"b": objects}})
    coco = make_coco(tmp_path / "coco", images=turned)
    for train, _ in (open_voc(voc, None, None, None), open_coco(coco, None, None, None)):
        corrupt: list[tuple[int, str, str]] = []
        BoxSamples(train, [32], 64, 0, masks=False).sample(0, 0, corrupt)
        assert "for 30 x 40 pixels, the image has 40 x 30" in corrupt[0][2]


def test_voc_finds_its_year_from_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cat = voc_object("cat", (1, 1, 10, 20))
    monkeypatch.chdir(make_voc(tmp_path / "VOC2007", {"trainval": {"a": cat}, "test": {"b": cat}}))
    train, val = open_voc(Path(), None, "2007/test", None)
    assert (train.name, val.rule) == ("voc07", "voc 11-point")


def test_compressed_and_uncompressed_rle_give_the_same_mask() -> None:
    bits = np.random.default_rng(1).random((30, 40)) < 0.3
    packed = encode(bits[None])[0]
    assert np.array_equal(reference.decode(packed).astype(bool), bits)
    flat = bits.T.ravel()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat])))
    counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    for shape in (packed, {"size": [30, 40], "counts": counts}):
        assert np.array_equal(rasterise(shape, (30, 40), 30, 40), bits)


def test_errors_in_coco_are_reported(tmp_path: Path) -> None:
    root = make_coco(tmp_path)
    file = root / "annotations/instances_train2017.json"
    for text, message in (
        ("", "it is empty"),
        ("{", "cannot be read"),
        (json.dumps(coco_file(annotations=[])), "holds no annotations"),
        (json.dumps(coco_file(categories=coco_file()["categories"][:1])), "2 of the 5 .* a class"),
        (json.dumps(coco_file(images=coco_file()["images"][:1])), "5 of the 5 .* an image"),
        (json.dumps(coco_file(annotations=[{}])), "annotations without a number as image_id"),
        (
            json.dumps(coco_file(annotations=[{"image_id": 7, "category_id": 3}])),
            "annotations without a bbox of four numbers",
        ),
        (json.dumps(coco_file(images=[{"id": "x"}])), "images without a number as id"),
        (
            json.dumps(coco_file(images=[{"id": 7, "width": 40, "height": 30}])),
            "images without file_name",
        ),
        (json.dumps(coco_file(categories=[7])), "categories without keys"),
        (json.dumps(coco_file(images=coco_file()["images"] * 2)), "two images with the id"),
        (changed("images", width="40"), "images without a number as width"),
        (changed("images", height=30.5), "images without a number as height"),
        (changed("images", id=10**400), "images without a number as id"),
        (changed("annotations", iscrowd="0"), r"without 0 or 1 as iscrowd \(it is '0'\)"),
        (changed("annotations", iscrowd=None), "annotations without 0 or 1 as iscrowd"),
        (changed("annotations", area="9"), r"a number as area \(it is '9'\)"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=message) as raised:
            open_coco(root, None, None, None)
        assert "instances_train2017.json" in str(raised.value)
    file.write_text(json.dumps(coco_file()))
    (root / "train2017/9.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of the 2 images .* 9\.jpg"):
        open_coco(root, None, None, None)
    (root / "train2017/7.jpg").unlink()
    with pytest.raises(UserError, match="do not exist, for example"):
        open_coco(root, None, None, None)
    with pytest.raises(UserError, match="has no annotations/instances_nothing"):
        open_coco(root, "nothing", None, None)
    with pytest.raises(UserError, match="holds no boxes in a known format"):
        open_boxes(str(tmp_path / "train2017"), size=64)


def test_scenes_have_the_masks_of_their_boxes() -> None:
    source = SceneBoxes("val", 64, np.arange(5))
    for index in range(5):
        found, masks = source.objects(index), source.masks(index, 64, 64)
        for (left, top, right, bottom), bits in zip(found.boxes.astype(int), masks, strict=True):
            assert bits[top:bottom, left:right].sum() == bits.sum() > 0
    assert limited(source, 3, 0).describe(0) == limited(source, 3, 0).describe(0)
    few = {limited(source, 2, 0).describe(i) for i in range(2)}
    assert few < {limited(source, 4, 0).describe(i) for i in range(4)}


def test_samples_depend_only_on_their_key_and_boxes_match_their_objects() -> None:
    source = SceneBoxes("train", 64, np.arange(4))
    samples = BoxSamples(source, [48, 80], 1000, 3, masks=True)
    keys = [(epoch, index) for epoch in range(3) for index in range(4)]
    batch, again = samples.__getitems__(keys), samples.__getitems__(keys[::-1])
    sides = set()
    for image, target, other in zip(batch.images, batch.targets, again.images[::-1], strict=True):
        assert torch.equal(image, other)
        sides.add(image.shape[-1])
        for box, bits in zip(target["boxes"], target["masks"], strict=True):
            rows, columns = torch.where(bits)
            edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert (box - torch.stack(edges)).abs().max() <= 1.01
    assert sides == {48, 80}
    first = samples.sample(0, 1, [])[0]
    assert torch.equal(samples.__getitems__([(0, 1)]).images[0], first)


def test_flips_and_padding() -> None:
    image = torch.arange(2 * 3 * 4).view(1, 6, 4).to(torch.uint8).expand(3, 6, 4)
    target = {"boxes": torch.tensor([[0.0, 1.0, 3.0, 5.0]]), "labels": torch.tensor([1])}
    mirror, seen = flipped(image, target)
    assert seen["boxes"].tolist() == [[1.0, 1.0, 4.0, 5.0]]
    assert torch.equal(mirror[0, 0], image[0, 0].flip(0))
    assert target["boxes"].tolist() == [[0.0, 1.0, 3.0, 5.0]]
    images, sizes = padded(
        [image, torch.zeros(3, 3, 9, dtype=torch.uint8)],
        (0.5, 0.5, 0.5),
        (0.5, 0.5, 0.5),
        8,
        torch.device("cpu"),
    )
    assert images.shape == (2, 3, 8, 16) and sizes == [(6, 4), (3, 9)]
    assert (
        images[0, 0, 0, 0] == -1
        and images[0, 0, 6:].eq(0).all()
        and images[1, :, :3, 9:].eq(0).all()
    )
    assert resized(480, 640, 800, 1333) == (800, 1067)


def test_boxes_of_voc_are_clipped_to_their_image(tmp_path: Path) -> None:
    far = voc_object("cat", (-(10**9), 1, 10, 10**9)) + voc_object("dog", (50, 1, 60, 9))
    inside = voc_object("dog", (5, 5, 40, 30))
    size = "<size><width>40</width><height>30</height></size>"
    root = make_voc(tmp_path / "VOC2012", {"train": {"a": size + far}, "val": {"b": inside}})
    train, val = open_voc(root, None, None, None)
    assert train.objects(0).boxes.tolist() == [[0, 0, 10, 30]]
    assert train.notes[0].startswith("1 boxes without area") and not val.notes
    assert val.objects(0).boxes.tolist() == [[4, 4, 40, 30]]
