"""Data sets by name: exact pixels, the right splits, and selection of classes."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from lewel.data.sources import downloads
from lewel.data.sources.arrays import Arrays
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.named import NAMES
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Data, Source, digest
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import Order, TwoViews, make_loader
from lewel.errors import UserError
from tests.running import tiny_run

from .layouts import LAYOUTS

WITHOUT_SPLIT = ("eurosat", "caltech101", "sun397")

pytestmark = pytest.mark.usefixtures("root", "internet")


def open_set(name: str, **options: object) -> Data:
    return open_data(name, image_size=32, **options)


def listing(source: Source | None) -> list[str]:
    assert source is not None
    return [source.describe(i) for i in range(len(source))]


def error_of(name: str, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        open_set(name, **options)
    text = str(caught.value)
    assert "\n" not in text and text.count(". ") == 0 and text.endswith(".")
    return text


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize("name", NAMES)
def test_every_name_opens_its_layout(name: str, root: Path) -> None:
    LAYOUTS[name](root)
    data = open_set(name)
    held_out = 2 if name in WITHOUT_SPLIT else 0
    assert data.train is not None and data.val is not None
    assert (data.train.name, data.val.name) == (name, name)
    assert len(data.unlabelled) == (30 if name == "stl10" else 20)
    assert len(data.train) == 20 - held_out
    assert len(data.val) == {"imagenet": 8}.get(name, held_out or 6)
    assert data.train.classes == data.val.classes and data.train.classes is not None
    for source in (data.train, data.val):
        assert source.labels is not None and source.labels.dtype == np.int64
        assert len(source.labels) == len(source)
        assert source.labels.min() >= 0 and source.labels.max() < len(data.train.classes)
        for index in (0, len(source) - 1):
            image = source.read(index)
            assert image.dtype == torch.uint8 and image.shape[0] == 3
    everything = listing(data.unlabelled) + listing(data.train) + listing(data.val)
    assert not any(path.startswith("/") or str(root) in path for path in everything)
    assert len(set(listing(data.train) + listing(data.val))) == len(data.train) + len(data.val)


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize("name", ["food101", "oxford_pets", "dtd", "caltech101", "imagenette"])
def test_labels_of_files_are_those_of_torchvision(name: str, root: Path) -> None:
    LAYOUTS[name](root)
    source = open_set(name).unlabelled
    assert source.labels is not None and source.classes is not None
    for path, label in zip(listing(source), source.labels, strict=True):
        words = source.classes[label].lower().replace(" ", "_")
        assert words in path.lower()


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("cifar10", datasets.CIFAR10, ({"train": True}, {"train": False})),
        ("cifar100", datasets.CIFAR100, ({"train": True}, {"train": False})),
        ("stl10", datasets.STL10, ({"split": "train"}, {"split": "test"})),
        ("svhn", datasets.SVHN, ({"split": "train"}, {"split": "test"})),
        ("fashion_mnist", datasets.FashionMNIST, ({"train": True}, {"train": False})),
    ],
)
def test_arrays_have_the_pixels_and_labels_of_torchvision(
    name: str, kind: type, options: tuple[dict[str, object], ...], root: Path
) -> None:
    LAYOUTS[name](root)
    data = open_set(name)
    for source, arguments in zip((data.train, data.val), options, strict=True):
        reference = kind(root, **arguments)
        assert source is not None and source.labels is not None
        assert len(source) == len(reference)
        for index in range(len(source)):
            image, label = reference[index]
            expected = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
            assert torch.equal(source.read(index), expected)
            assert source.labels[index] == label
        with pytest.raises(IndexError):
            source.read(len(source))
        with pytest.raises(IndexError):
            source.describe(-1)


@pytest.mark.usefixtures("any_checksum")
def test_stl10_pre_trains_on_its_unlabeled_split(root: Path) -> None:
    LAYOUTS["stl10"](root)
    data = open_set("stl10", limit=7)
    unlabelled = open_set("stl10").unlabelled
    assert unlabelled.labels is None and unlabelled.classes is None
    image, _ = datasets.STL10(root, "unlabeled")[3]
    assert torch.equal(unlabelled.read(3), torch.from_numpy(np.array(image)).permute(2, 0, 1))
    assert listing(unlabelled)[3] == "unlabeled/00003"
    assert (len(data.unlabelled), len(data.train or ()), len(data.val or ())) == (7, 20, 6)
    assert data.train is not None and data.train.classes == ("cat", "dog", "owl")
    assert set(listing(data.unlabelled)) < set(listing(unlabelled))
    assert data.notes == (
        "stl10: pre-training uses its 30 unlabeled images.",
        "stl10: its 20 train images are used for training, its 6 test images for validation.",
    )


def test_stl10_of_another_size_is_refused(root: Path) -> None:
    LAYOUTS["stl10"](root)
    with (root / "stl10_binary/unlabeled_X.bin").open("r+b") as file:
        file.truncate(27 * 3 * 96 * 96)
    assert "stl10 cannot be downloaded" in error_of("stl10")


@pytest.mark.usefixtures("any_checksum")
def test_limit_and_names_of_images(root: Path) -> None:
    LAYOUTS["cifar10"](root)
    data = open_set("cifar10", limit=5)
    assert listing(data.unlabelled) == listing(data.train)
    assert len(data.unlabelled) == 5 and len(data.val or ()) == 6
    assert set(listing(data.unlabelled)) < {f"train/{i:05}" for i in range(20)}
    assert listing(data.val) == [f"test/{i:05}" for i in range(6)]


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize("name", ["cifar10", "sun397", "food101"])
def test_the_digest_is_the_same_in_another_folder(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LAYOUTS[name](root)
    LAYOUTS[name](tmp_path / "other")
    here = digest(open_set(name).unlabelled)
    monkeypatch.setenv("LEWEL_DATA", str(tmp_path / "other"))
    # Another file system lists its folders in another order.
    real = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda *a: iter(sorted(real(*a), reverse=True)))
    assert digest(open_set(name).unlabelled) == here


@pytest.mark.usefixtures("any_checksum")
def test_a_corrupt_image_raises_unreadable_image(root: Path) -> None:
    LAYOUTS["eurosat"](root)
    source = open_set("eurosat").unlabelled
    path = root / source.describe(4)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UnreadableImage):
        source.read(4)


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize("name", ["cifar10", "stl10", "fashion_mnist", "eurosat"])
def test_workers_read_what_the_parent_reads(name: str, root: Path) -> None:
    LAYOUTS[name](root)
    source = open_set(name).unlabelled
    copied = pickle.loads(pickle.dumps(source))
    assert all(torch.equal(source.read(i), copied.read(i)) for i in range(len(source)))
    order = Order(samples=20, batch_size=10, seed=0)
    dataset = TwoViews(source, (ViewRecipe(), ViewRecipe()), 8, 0)
    without, with_workers = (list(make_loader(dataset, order, 0, 2, n, pin=False)) for n in (0, 2))
    for one, other in zip(without, with_workers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.pixels, other.pixels, strict=True))
        assert not one.corrupt


@pytest.mark.usefixtures("any_checksum")
def test_a_mapped_file_is_pickled_by_its_path(root: Path) -> None:
    LAYOUTS["stl10"](root)
    assert len(pickle.dumps(open_set("stl10").unlabelled)) < 2_000


def test_read_returns_a_copy() -> None:
    source = Arrays(np.zeros((2, 4, 4, 3), np.uint8), name="a", split="train")
    source.read(0).fill_(9)
    assert not source.read(0).any()


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("LEWEL_DATA", "")
    assert downloads.data_root() == "/home/someone/.cache/lewel"
    monkeypatch.setenv("LEWEL_DATA", "~/sets")
    assert downloads.data_root() == "/home/someone/sets"


@pytest.mark.usefixtures("any_checksum")
def test_a_name_takes_precedence_over_a_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LAYOUTS["cifar10"](root)
    LAYOUTS["eurosat"](tmp_path / "here/cifar10")
    monkeypatch.chdir(tmp_path / "here")
    data = open_set("cifar10")
    assert data.unlabelled.describe(0) == "train/00000"
    assert data.notes[0] == "cifar10 is torchvision's data set; write ./cifar10 for the folder."
    assert open_set("./cifar10").unlabelled.describe(0).startswith("eurosat/")


def test_names_are_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong, right in (("cifar-10", "cifar10"), ("CIFAR100", "cifar100"), ("stl", "stl10")):
        with pytest.raises(UserError, match=f"Did you mean.* {right}"):
            open_set(wrong)


def test_imagenet_classes_are_wordnet_ids(root: Path, tmp_path: Path) -> None:
    LAYOUTS["imagenet"](root)
    (tmp_path / "list.txt").write_text("# two of them\nn01491361\n\nn01443537\r\nn01491361\n")
    data = open_set("imagenet", classes=str(tmp_path / "list.txt"))
    assert data.train is not None and data.val is not None
    for source, count in ((data.unlabelled, 5), (data.train, 5), (data.val, 2)):
        assert source.classes == ("n01443537", "n01491361")
        assert source.labels is not None and source.labels.tolist() == [0] * count + [1] * count
        assert all(source.classes[0] in path for path in listing(source)[:count])


def test_imagenet_with_other_classes_in_its_validation_set(root: Path) -> None:
    LAYOUTS["imagenet"](root)
    (root / "imagenet/val/n01440764").rename(root / "imagenet/val/n09999999")
    assert "the same class folders" in error_of("imagenet")


def test_the_unlabeled_split_of_stl10_has_no_classes(root: Path, tmp_path: Path) -> None:
    LAYOUTS["stl10"](root)
    (tmp_path / "list.txt").write_text("cat\n")
    text = error_of("stl10", classes=str(tmp_path / "list.txt"))
    assert text.startswith("stl10 cannot be reduced to the classes of ")


def test_every_name_is_tested() -> None:
    assert tuple(LAYOUTS) == NAMES


@pytest.mark.usefixtures("any_checksum")
def test_a_run_takes_a_name_and_some_of_its_classes(root: Path, tmp_path: Path) -> None:
    LAYOUTS["cifar10"](root)
    names = open_set("cifar10").train.classes
    (tmp_path / "some.txt").write_text("\n".join(names[:2]))
    few = ("--epochs", "1", "--limit", "8", "--batch-size", "2")
    assert tiny_run(tmp_path / "all", *few, data="cifar10") == 0
    some = (*few, "--classes", str(tmp_path / "some.txt"))
    assert tiny_run(tmp_path / "some", *some, data="cifar10") == 0
    cards = [json.loads((tmp_path / run / "card.json").read_text()) for run in ("all", "some")]
    assert [card["data"] for card in cards] == ["cifar10"] * 2
    assert [card["classes"] for card in cards] == [list(names), list(names[:2])]


def test_a_name_that_cannot_be_downloaded_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny_run(tmp_path / "run", data="cifar100") == 2
    message = capsys.readouterr().err.strip()
    assert "cifar-100-python.tar.gz" in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "run").exists()
