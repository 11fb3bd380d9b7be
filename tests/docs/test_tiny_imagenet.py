"""The list of the images that docs/reproduction.md trains on."""

from pathlib import Path

from tests.tasks.make_tiny_imagenet_100 import LIST, make


def test_the_listed_images_are_linked_into_class_folders(tmp_path: Path) -> None:
    source, out = tmp_path / "tiny-imagenet-200", tmp_path / "small"
    (source / "train/n01/images").mkdir(parents=True)
    (source / "val/images").mkdir(parents=True)
    for name in ("train/n01/images/n01_3.JPEG", "train/n01/images/n01_4.JPEG"):
        (source / name).write_text(name)
    (source / "val/images/val_7.JPEG").write_text("seven")
    assert make(source, out, "# a comment\ntrain n01 4\nval n01 7\n") == 2
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {"train/n01/n01_4.JPEG", "val/n01/val_7.JPEG"}
    assert (out / "val/n01/val_7.JPEG").read_text() == "seven"


def test_the_list_has_as_many_images_as_are_stated() -> None:
    rows = [line.split() for line in LIST.read_text().splitlines() if not line.startswith("#")]
    numbers = {kind: [row[2:] for row in rows if row[0] == kind] for kind in ("train", "val")}
    assert [len(one) for one in numbers["train"]] == [250] * 100
    assert [len(one) for one in numbers["val"]] == [50] * 100
    assert len({number for one in numbers["val"] for number in one}) == 5_000
