"""Folders, lists and CSVs as users have them, and one message for each that cannot be used."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.data.pack.storage import Storage
from lewel.data.sources import open as sources
from lewel.data.sources.files import Files
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.open import open_data, open_every_split
from lewel.data.sources.source import Data, Source, Subset, digest
from lewel.errors import UserError


def fill(root: Path, *paths: str) -> Path:
    """Make empty files with names of images; only `read` opens them."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def many(folder: str, count: int) -> list[str]:
    return [f"{folder}/{i:03}.jpg" for i in range(count)]


def open_at(path: Path, **options: object) -> Data:
    return open_data(str(path), image_size=32, **options)


def listing(source: Source | None) -> list[str]:
    assert source is not None
    return [source.describe(i) for i in range(len(source))]


def error_of(data: Path | str, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        open_data(str(data), image_size=32, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flat_folder_has_no_labels(tmp_path):
    root = fill(tmp_path / "photos", "b.JPG", "a.png", "notes.txt", "deep/er/c.webp")
    data = open_at(root)
    assert listing(data.unlabelled) == ["a.png", "b.JPG", "deep/er/c.webp"]
    assert data.unlabelled.name == "photos"
    assert data.unlabelled.labels is None
    assert data.unlabelled.classes is None
    assert data.train is None
    assert data.val is None


def test_name_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(fill(tmp_path / "photos", "a.png"))
    assert open_data(".", image_size=32).unlabelled.name == "photos"


def test_reads_images(tmp_path):
    Image.new("RGB", (5, 3), "red").save(tmp_path / "a.png")
    fill(tmp_path, "b.png")
    source = pickle.loads(pickle.dumps(open_at(tmp_path).unlabelled))
    assert torch.equal(source.read(0)[:, 0, 0], torch.tensor([255, 0, 0], dtype=torch.uint8))
    assert source.read(0).shape == (3, 3, 5)
    with pytest.raises(UnreadableImage, match="empty file"):
        source.read(1)
    with pytest.raises(IndexError):
        source.read(2)


def test_class_folders_without_a_split(tmp_path):
    root = fill(tmp_path / "pets", *many("dog", 30), *many("cat/young", 30))
    data = open_at(root)
    assert len(data.unlabelled) == 60
    assert data.unlabelled.classes == ("cat", "dog")
    assert data.unlabelled.labels.tolist() == [0] * 30 + [1] * 30
    assert data.unlabelled.labels.dtype == np.int64
    assert (len(data.train), len(data.val)) == (54, 6)
    assert sorted(listing(data.train) + listing(data.val)) == listing(data.unlabelled)
    for source in (data.train, data.val):
        named = [source.describe(i).split("/")[0] for i in range(len(source))]
        assert [source.classes[label] for label in source.labels] == named
    assert any("6 of its 60" in note for note in data.notes)


@pytest.mark.parametrize("split", ["", "train/"])
def test_class_folders_without_an_image_are_named(tmp_path, split):
    root = fill(tmp_path / "pets", *many(f"{split}dog", 4), *many(f"{split}cat", 4))
    assert not any("without an image" in note for note in open_at(root).notes)
    (root / split / "owl").mkdir()
    data = open_at(root)
    assert data.unlabelled.classes == ("cat", "dog")
    assert "pets has folders without an image: owl; they are no classes." in data.notes


def test_the_split_depends_only_on_the_seed(tmp_path):
    root = fill(tmp_path, *many("a", 50), *many("b", 50))
    assert listing(open_at(root, seed=3).val) == listing(open_at(root, seed=3, limit=20).val)
    assert listing(open_at(root, seed=3).val) != listing(open_at(root, seed=4).val)


def test_images_beside_class_folders_mean_no_labels(tmp_path):
    assert open_at(fill(tmp_path, "x.jpg", "a/1.jpg", "b/1.jpg")).train is None


def test_one_class_folder_means_no_labels(tmp_path):
    assert open_at(fill(tmp_path, "a/1.jpg", "a/2.jpg", "b/readme.txt")).train is None


def test_smallest_labelled_folder(tmp_path):
    data = open_at(fill(tmp_path, "a/1.jpg", "b/1.jpg"))
    assert (len(data.unlabelled), len(data.train), len(data.val)) == (2, 1, 1)


@pytest.mark.parametrize("train", ["train", "Train"])
@pytest.mark.parametrize("split", ["val", "test", "valid", "validation"])
def test_splits(tmp_path, train, split):
    root = fill(
        tmp_path / "pets", *many(f"{train}/a", 4), *many(f"{train}/b", 4), "extra/x.jpg",
        f"{split}/b/1.jpg", f"{split}/a/1.jpg",
    )  # fmt: skip
    data = open_at(root)
    assert listing(data.unlabelled) == listing(data.train)
    assert len(data.train) == 8
    assert all(path.startswith(train) for path in listing(data.train))
    assert listing(data.val) == [f"{split}/a/1.jpg", f"{split}/b/1.jpg"]
    assert data.val.labels.tolist() == [0, 1]
    assert data.notes[0] == f"pets has {train}/: only its 8 images are used for training."
    assert data.notes[1] == f"pets has {split}/: its 2 images are used for validation."


def test_val_comes_before_test(tmp_path):
    paths = [f"{split}/{c}/1.jpg" for split in ("train", "test", "val") for c in "ab"]
    assert listing(open_at(fill(tmp_path, *paths)).val) == ["val/a/1.jpg", "val/b/1.jpg"]


def test_unlabelled_test_folder_is_not_used_for_validation(tmp_path):
    root = fill(tmp_path, *many("train/a", 10), *many("train/b", 10), "test/1.jpg")
    data = open_at(root)
    assert (len(data.unlabelled), len(data.train), len(data.val)) == (20, 18, 2)
    assert not set(listing(data.train)) & set(listing(data.val))
    assert any("not used for validation" in note for note in data.notes)


def test_train_without_labels(tmp_path):
    data = open_at(fill(tmp_path, "train/1.jpg", "val/a/1.jpg", "val/b/1.jpg"))
    assert listing(data.unlabelled) == ["train/1.jpg"]
    assert (data.train, data.val) == (None, None)


def test_split_folders_are_not_classes(tmp_path):
    assert open_at(fill(tmp_path, "val/1.jpg", "test/1.jpg")).train is None


def test_classes_that_differ_leave_no_validation_set(tmp_path):
    root = fill(tmp_path / "pets", "train/a/1.jpg", "train/b/1.jpg", "val/b/1.jpg", "val/c/1.jpg")
    data = open_data(str(root), image_size=32)
    assert any(", c only in val; a only in train:" in note for note in data.notes)
    assert (len(data.unlabelled), data.train, data.val) == (2, None, None)


def test_an_empty_val_is_reported_and_no_training_images_take_its_place(tmp_path):
    root = fill(tmp_path / "pets", "train/a/1.jpg", "train/b/1.jpg", "train/b/2.jpg", "val/x.txt")
    data = open_data(str(root), image_size=32)
    assert any("holds no image" in note for note in data.notes)
    assert (len(data.unlabelled), data.train, data.val) == (3, None, None)


@pytest.mark.parametrize("how", ["links", "hard links", "copies", "linked classes"])
def test_training_images_in_val_are_refused_or_reported(tmp_path, how):
    root = fill(tmp_path / "set", *many("train/cat", 20), *many("train/dog", 20))
    for path in root.rglob("*.jpg"):
        path.write_text(f"{path.parent.name} {path.name}")
    for path in list(root.rglob("*.jpg")):
        twin = root / "val" / path.relative_to(root / "train")
        if how == "linked classes":
            twin.parent.parent.mkdir(exist_ok=True)
            if not twin.parent.exists():
                twin.parent.symlink_to(path.parent)
            continue
        twin.parent.mkdir(parents=True, exist_ok=True)
        if how == "links":
            twin.with_name(f"another {path.name}").symlink_to(path)
        elif how == "hard links":
            twin.hardlink_to(path)
        else:
            twin.write_bytes(path.read_bytes())
    text = error_of(root)
    assert "40 of 40 validation images that were compared are training images" in text
    if how == "copies":
        for path in [*root.glob("val/cat/0[01]*.jpg"), *root.glob("val/dog/01*.jpg")]:
            path.write_text(f"another {path.name}")
        notes = open_at(root).notes
        assert any("10 of 40 validation images" in note and "too high" in note for note in notes)


def test_val_that_is_train(tmp_path):
    root = fill(tmp_path / "pets", "train/a/1.jpg", "train/b/1.jpg")
    (root / "val").symlink_to(root / "train")
    assert "same folder" in error_of(root)


def test_limit_with_a_split(tmp_path):
    root = fill(tmp_path, *many("train/a", 50), *many("train/b", 50), "val/a/1.jpg", "val/b/1.jpg")
    data = open_at(root, limit=20)
    assert len(data.unlabelled) == 20
    assert listing(data.train) == listing(data.unlabelled) == sorted(listing(data.train))
    assert set(data.train.labels) == {0, 1}
    assert len(data.val) == 2
    assert set(listing(data.train)) < set(listing(open_at(root, limit=40).train))


@pytest.mark.parametrize(("limit", "train"), [(1, 1), (20, 20), (90, 90), (95, 90), (100, 90)])
def test_limit_without_a_split(tmp_path, limit, train):
    data = open_at(fill(tmp_path, *many("a", 50), *many("b", 50)), limit=limit)
    assert (len(data.unlabelled), len(data.train), len(data.val)) == (limit, train, 10)
    assert set(listing(data.train)) <= set(listing(data.unlabelled))
    assert not set(listing(data.train)) & set(listing(data.val))


def test_limits_out_of_range(tmp_path):
    root = fill(tmp_path, "1.jpg", "2.jpg")
    data = open_at(root, limit=3)
    assert len(data.unlabelled) == 2
    assert any("limit is 3 but there are 2 images" in note for note in data.notes)
    assert error_of(root, limit=0).startswith("limit is 0")


def test_scenes():
    data = open_data("scenes", image_size=32, limit=50, seed=7)
    assert (len(data.unlabelled), len(data.train)) == (50, 50)
    assert len(data.val) > 50
    assert data.unlabelled.name == "scenes"
    assert data.unlabelled.read(0).shape == (3, 48, 48)
    assert data.train.labels.shape == (50,)


def test_hidden_entries_are_skipped(tmp_path):
    fill(tmp_path, "a.jpg", ".b.jpg", ".git/c.jpg", "__MACOSX/d.jpg", "._a.jpg")
    assert listing(open_at(tmp_path).unlabelled) == ["a.jpg"]


def test_links(tmp_path):
    fill(tmp_path / "elsewhere", "2.jpg")
    root = fill(tmp_path / "photos", "real/1.jpg")
    (root / "back").symlink_to(root)
    (root / "again").symlink_to(root / "real")
    (root / "out").symlink_to(tmp_path / "elsewhere")
    (root / "self.jpg").symlink_to(root / "self.jpg")
    (root / "gone.jpg").symlink_to(root / "nowhere")
    (root / "file.jpg").symlink_to(root / "real/1.jpg")
    os.mkfifo(root / "pipe.jpg")
    assert listing(open_at(root).unlabelled) == ["file.jpg", "out/2.jpg", "real/1.jpg"]


def test_names_that_are_not_utf8(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff\xfe.png")
    source = open_at(tmp_path).unlabelled
    assert source.read(0).shape == (3, 2, 2)


def test_missing_path(tmp_path, monkeypatch):
    fill(tmp_path, "photos/a.jpg")
    assert "Did you mean photos?" in error_of(tmp_path / "photo")
    assert "Did you mean photos?" in error_of(tmp_path / "photo/train")
    monkeypatch.chdir(tmp_path)
    assert "Did you mean scenes?" in error_of("scene")
    assert "does not exist" in error_of("zzz")
    assert "does not exist" in error_of("")
    assert "does not exist" in error_of("nul\0")


def test_folder_without_images(tmp_path):
    root = fill(tmp_path / "photos", *(f"{i}.txt" for i in range(10)), "a.mp4", "b.MP4")
    text = error_of(root)
    assert "photos holds no image: 12 files seen, of these .txt 10, .mp4 2; expected .jpg" in text
    (tmp_path / "empty").mkdir()
    assert "it has no files" in error_of(tmp_path / "empty")
    fill(tmp_path / "split", "a.jpg", "train/readme")
    assert error_of(tmp_path / "split").startswith("split/train holds no image: 1 files seen")


def test_unreadable_folder(tmp_path, monkeypatch):
    root = fill(tmp_path, "a/1.jpg")
    real = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(sources.os, "scandir", refuse)
    assert f"Cannot read the folder {tmp_path}/a (permission denied)" in error_of(root)


def test_paths_that_are_not_data(tmp_path):
    assert "is one image" in error_of(fill(tmp_path, "a.JPG") / "a.JPG")
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in error_of(tmp_path / "pipe")
    (tmp_path / "photos.zip").write_bytes(b"PK\x03\x04\xff\xfe")
    assert "not UTF-8" in error_of(tmp_path / "photos.zip")


def test_text_list(tmp_path):
    fill(tmp_path, "in/b.jpg", "in/a b.jpg", "out/c.jpg")
    lines = ["# mine", "b.jpg", "", f"{tmp_path}/out/c.jpg", "  a b.jpg\r", "./b.jpg"]
    (tmp_path / "in/list.txt").write_bytes("\n".join(lines).encode("utf-8-sig"))
    data = open_at(tmp_path / "in/list.txt")
    assert listing(data.unlabelled) == ["b.jpg", f"{tmp_path}/out/c.jpg", "a b.jpg"]
    assert data.unlabelled.name == "list"
    assert data.train is None
    assert any("repeats 1 paths" in note for note in data.notes)


def test_list_with_missing_files(tmp_path):
    fill(tmp_path, "a.jpg")
    (tmp_path / "list.txt").write_text("a.jpg\n1.jpg\n2.jpg\n3.jpg\n4.jpg\n")
    text = error_of(tmp_path / "list.txt")
    assert "names 4 files of 5 that do not exist (1.jpg, 2.jpg, 3.jpg, ...)" in text
    (tmp_path / "list.txt").write_text("# nothing\n")
    assert "names no image" in error_of(tmp_path / "list.txt")


def test_csv(tmp_path):
    fill(tmp_path, *many("in", 20))
    rows = [f'"{path}", {11 - i % 10},x' for i, path in enumerate(many("in", 20))]
    (tmp_path / "pets.csv").write_text("\n".join(["Path, Label,more", *rows, ""]))
    data = open_at(tmp_path / "pets.csv")
    assert data.unlabelled.classes == tuple(str(i) for i in range(2, 12))
    assert data.unlabelled.labels.tolist() == [9 - i % 10 for i in range(20)]
    assert (len(data.train), len(data.val)) == (18, 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("training/{}", "validation/{}"),
        ("train2017/{}", "val2017/{}"),
        ("seg_train/seg_train/{}", "seg_test/seg_test/{}"),
        ("{}/train", "{}/val"),
    ],
)
def test_splits_by_other_names_are_no_classes(tmp_path, first, second):
    names = [name.format(one) for name in (first, second) for one in ("cat", "dog")]
    data = open_at(fill(tmp_path / "set", *(path for name in names for path in many(name, 3))))
    assert len(data.unlabelled) == 12 and data.train is None and data.val is None
    assert "look like splits" in data.notes[0]


def test_classes_with_words_of_splits_are_classes(tmp_path):
    names = ("test_tube", "trainer", "valley", "evaluation")
    data = open_at(fill(tmp_path / "set", *(path for name in names for path in many(name, 9))))
    assert data.train is not None and data.train.classes == tuple(sorted(names))


def test_one_split_by_two_spellings_is_refused(tmp_path):
    root = fill(tmp_path / "set", *many("train/cat", 3), *many("Train/cat", 3))
    assert "has both Train/ and train/" in error_of(root)


def test_a_list_of_folders_and_a_csv_by_another_name_are_named(tmp_path):
    fill(tmp_path, "cat/a.jpg")
    (tmp_path / "list.txt").write_text("cat\n")
    assert "1 files of 1 that are folders (cat)" in error_of(tmp_path / "list.txt")
    (tmp_path / "list.txt").write_text("path,label\ncat/a.jpg,cat\n")
    assert "a name that ends in .csv" in error_of(tmp_path / "list.txt")


def test_labels_that_are_alike_but_not_equal_are_classes(tmp_path):
    fill(tmp_path, *many("cat", 4))
    labels = ("12345678", "12345679", "1.5", "1.50001")
    rows = "".join(f"cat/00{i}.jpg,{label}\n" for i, label in enumerate(labels))
    (tmp_path / "pets.csv").write_text(f"path,label\n{rows}")
    assert open_at(tmp_path / "pets.csv").unlabelled.classes == tuple(sorted(labels))


def test_columns_that_are_not_used_are_named(tmp_path):
    fill(tmp_path, *many("cat", 5))
    rows = "".join(f"cat/00{i}.jpg,cat,val\n" for i in range(5))
    (tmp_path / "pets.csv").write_text(f"path,label,split\n{rows}")
    assert "columns that are not used: split" in open_at(tmp_path / "pets.csv").notes[0]


def test_csv_without_labels(tmp_path):
    fill(tmp_path, "a.jpg")
    (tmp_path / "pets.csv").write_text("id,path\n1,a.jpg\n")
    data = open_at(tmp_path / "pets.csv")
    assert listing(data.unlabelled) == ["a.jpg"]
    assert any("no column label" in note for note in data.notes)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a.jpg,cat\n", "has no column path: its first line is 'a.jpg,cat'"),
        ("", "has no column path"),
        ("path,label\n", "names no image"),
        (
            "path,label\na.jpg,cat\nb.jpg,\nc.jpg\n",
            "2 rows of 3 without a label (the first is b.jp",
        ),
        ("path,label\na.jpg,cat\na.jpg,dog\n", "labels a.jpg both cat and dog"),
        ("path,label\na.jpg,cat\nb.jpg,big, cat\n", "than its 2 columns in line 3 (b.jpg)"),
        ('path,label\na.jpg,cat\n"b.jpg,cat\nc.jpg,cat\n', "is no CSV from line 3 on"),
        ("path,label\nz.jpg,cat\n", "names 1 files of 1 that do not exist (z.jpg)"),
        ("path,label,Label\na.jpg,cat,dog\n", "has the column label twice"),
        ("path,label\na.jpg,cat\nb.jpg,Cat\n", "has the labels Cat and cat"),
        ("path,label\na.jpg,1\nb.jpg,1.0\n", "has the labels 1 and 1.0"),
        ("path,label\na.jpg,cat\nb.jpg,nan\n", "has the label nan, a missing value"),
    ],
)
def test_csv_that_cannot_be_used(tmp_path, content, expected):
    fill(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    (tmp_path / "pets.csv").write_text(content)
    assert expected in error_of(tmp_path / "pets.csv")


def test_a_file_that_is_spelt_in_several_ways_is_one(tmp_path):
    fill(tmp_path, "a.jpg", "b.jpg")
    spelt = ["a.jpg", f"../{tmp_path.name}/a.jpg", str(tmp_path / "a.jpg"), "b.jpg"]
    rows = "".join(f"{path},cat,\n" for path in spelt)  # a comma at the end cuts nothing
    (tmp_path / "pets.csv").write_text(f"path,label\n{rows}", encoding="utf-8-sig")
    data = open_at(tmp_path / "pets.csv")
    assert listing(data.unlabelled) == ["a.jpg", "b.jpg"]
    assert any("repeats 2 paths" in note for note in data.notes)
    (tmp_path / "pets.csv").write_text(f"path,label\na.jpg,cat\n{spelt[2]},dog\n")
    assert "(a.jpg) both cat and dog" in error_of(tmp_path / "pets.csv")


def test_subset_of_a_subset(tmp_path):
    files = Files(tmp_path, ["a", "ü", "c", "d"], labels=[0, 1, 2, 3], classes=("w", "x", "y", "z"))
    subset = Subset(Subset(files, [3, 1, 0]), [1, 2])
    assert listing(subset) == ["ü", "a"]
    assert subset.labels.tolist() == [1, 0]
    assert len(Files(tmp_path, [])) == 0


def class_list(folder: Path, text: str) -> str:
    (folder / "classes.txt").write_bytes(text.encode("utf-8-sig"))
    return str(folder / "classes.txt")


def test_classes_keep_their_order_and_are_renumbered(tmp_path):
    splits = {"train": 4, "val": 2}
    paths = [
        path for split, n in splits.items() for c in "abcd" for path in many(f"{split}/{c}", n)
    ]
    root = fill(tmp_path / "pets", *paths)
    chosen = class_list(tmp_path, "# mine\nd\n\n  b\r\nd\n")
    data = open_at(root, classes=chosen)
    for source, count in ((data.unlabelled, 4), (data.train, 4), (data.val, 2)):
        assert source.classes == ("b", "d")
        assert source.labels.tolist() == [0] * count + [1] * count
        assert source.labels.dtype == np.int64
        assert [path.split("/")[1] for path in listing(source)] == ["b"] * count + ["d"] * count
    assert f"{chosen} keeps 2 of 4 classes of pets: 8 of 16 images." in data.notes


def test_classes_come_before_limit_and_hold_out(tmp_path):
    root = fill(tmp_path / "pets", *(path for c in "abc" for path in many(c, 20)))
    chosen = class_list(tmp_path, "a\nc\n")
    data = open_at(root, classes=chosen)
    assert (len(data.unlabelled), len(data.train), len(data.val)) == (40, 36, 4)
    limited = open_at(root, classes=chosen, limit=10)
    assert (len(limited.unlabelled), len(limited.train), len(limited.val)) == (10, 10, 4)
    for source in (data.train, data.val, limited.train):
        assert [source.classes[label] for label in source.labels] == [
            path[0] for path in listing(source)
        ]
    assert digest(data.unlabelled) != digest(open_at(root).unlabelled)


def test_classes_of_scenes_and_of_a_csv(tmp_path):
    scenes = open_data("scenes", image_size=32)
    chosen = class_list(tmp_path, scenes.train.classes[2])
    data = open_data("scenes", image_size=32, classes=chosen)
    assert data.val.classes == (scenes.train.classes[2],)
    assert len(data.val) == (scenes.val.labels == 2).sum()
    fill(tmp_path, *many("in", 20))
    rows = [f"{path},{i % 4}" for i, path in enumerate(many("in", 20))]
    (tmp_path / "pets.csv").write_text("\n".join(["path,label", *rows]))
    data = open_at(tmp_path / "pets.csv", classes=class_list(tmp_path, "3\n1"))
    assert data.unlabelled.classes == ("1", "3")
    assert data.unlabelled.labels.tolist() == [0, 1] * 5


def test_class_lists_that_cannot_be_used(tmp_path):
    root = fill(tmp_path / "pets", "a/1.jpg", "b/1.jpg")
    missing = str(tmp_path / "gone.txt")
    assert f"The class list {missing} does not exist" in error_of(root, classes=missing)
    assert "is a folder" in error_of(root, classes=str(root))
    assert "is empty" in error_of(root, classes=class_list(tmp_path, "# none\n\n"))
    (tmp_path / "classes.txt").write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8" in error_of(root, classes=str(tmp_path / "classes.txt"))
    text = error_of(root, classes=class_list(tmp_path, "a\nw\nx\ny\nz\n"))
    assert (
        "names 4 classes that pets does not have (w, x, y, ...): expected names such as a" in text
    )
    flat = fill(tmp_path / "photos", "1.jpg")
    text = error_of(flat, classes=class_list(tmp_path, "a"))
    assert text.startswith("photos cannot be reduced to the classes of ")


def test_a_cache_for_data_on_a_disk_is_noted(tmp_path: Path) -> None:
    fill(tmp_path / "photos", "a.jpg", "b.jpg")
    note = f"--cache has no effect: {tmp_path / 'photos'} is on this machine, not at a URL."
    storage = Storage(cache=str(tmp_path / "cache"))
    data = str(tmp_path / "photos")
    assert note in open_data(data, image_size=16, storage=storage).notes
    assert note not in open_data(data, image_size=16).notes
    notes: list[str] = []
    open_every_split(data, 16, notes, storage=storage)
    assert note in notes
    assert not (tmp_path / "cache").exists()
