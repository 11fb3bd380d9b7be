"""torchvision's data sets: how each is opened, and the use of its splits."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torchvision import datasets

from lewel.data.sources.arrays import Arrays
from lewel.data.sources.files import Files

STL10_IMAGES: Final = {"train": 5_000, "test": 8_000, "unlabeled": 100_000}


class Named(NamedTuple):
    """A row of the table."""

    dataset: Callable[[str, str, bool], Any]  # root, split, download -> torchvision's data set
    source: Callable[[str, str, str, Sequence[Any]], Files | Arrays]  # name, root, split, data sets
    archives: tuple[str, ...]  # files that may be put into the root by hand
    train: str = "train"  # splits that are used together are joined by a +
    val: str | None = "test"  # None: a fraction of train is held out
    unlabelled: str | None = None  # the pre-training split, if it is not train
    scipy: bool = False  # needed to read its .mat files


def _files(name: str, root: str, split: str, sets: Sequence[Any]) -> Files:
    """The image files that torchvision found, decoded by our own reader."""
    samples = [(str(path), int(label)) for dataset in sets for path, label in _samples(dataset)]
    samples.sort()  # some come in the arbitrary order of a directory listing
    paths = [path.removeprefix(root + os.sep) for path, _ in samples]
    labels = [label for _, label in samples]
    return Files(root, paths, name=name, labels=labels, classes=_classes(sets[0], labels))


def _samples(dataset: Any) -> Any:
    """(path, label) of each image of torchvision's data set."""
    if isinstance(dataset, datasets.Caltech101):
        folder = os.path.join(dataset.root, "101_ObjectCategories")
        return [
            (os.path.join(folder, dataset.categories[label], f"image_{number:04}.jpg"), label)
            for number, label in zip(dataset.index, dataset.y, strict=True)
        ]
    for field in ("samples", "_samples"):
        if hasattr(dataset, field):
            return getattr(dataset, field)
    paths = dataset._images if hasattr(dataset, "_images") else dataset._image_files
    return zip(paths, dataset._labels, strict=True)


def _arrays(name: str, root: str, split: str, sets: Sequence[Any]) -> Arrays:
    """The array that torchvision has read, or a memory map."""
    (dataset,) = sets
    pixels = np.asanyarray(dataset.data)
    if isinstance(dataset, datasets.SVHN):  # (N, 3, H, W), with an image's bytes N apart
        pixels = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    labels = dataset.targets if hasattr(dataset, "targets") else dataset.labels
    classes = None if labels is None else _classes(dataset, labels)
    return Arrays(pixels, name=name, split=split, labels=labels, classes=classes)


def _classes(dataset: Any, labels: npt.ArrayLike) -> tuple[str, ...]:
    """The class names; WordNet ids if there are any, because class lists use them."""
    for field in ("wnids", "categories", "classes"):
        if hasattr(dataset, field):
            return tuple(getattr(dataset, field))
    return tuple(str(i) for i in range(int(np.max(labels)) + 1))


class _Stl10(NamedTuple):
    """What `_arrays` needs of a split; pixels (N, 96, 96, 3) stay in the file until they are read.

    Torchvision would hash 3.3 GB for each of three splits and keep 2.8 GB in every process.
    """

    data: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8] | None
    classes: list[str]


def _stl10(root: str, split: str, download: bool) -> _Stl10:
    if download:
        datasets.STL10(root, "test", download=True)  # checks the archive
    folder, count = os.path.join(root, "stl10_binary"), STL10_IMAGES[split]
    pixels = np.memmap(os.path.join(folder, f"{split}_X.bin"), np.uint8, "r")
    labels = None
    if split != "unlabeled":
        labels = np.fromfile(os.path.join(folder, f"{split}_y.bin"), np.uint8) - 1
    if pixels.size != count * 3 * 96 * 96 or (labels is not None and len(labels) != count):
        raise RuntimeError("the unpacked files have the wrong size")
    with open(os.path.join(folder, "class_names.txt")) as file:
        names = file.read().split()
    # The file has columns before rows.
    return _Stl10(pixels.reshape(count, 3, 96, 96).transpose(0, 3, 2, 1), labels, names)


def _imagenet(root: str, split: str, download: bool) -> Any:
    """Class folders, unpacked by torchvision or by the user; the archives are not needed."""
    folder = os.path.join(root, "imagenet")
    if download:
        datasets.ImageNet(folder, split)  # unpacks
    return datasets.ImageFolder(os.path.join(folder, split))


def _by_split(kind: Any, root: str, split: str, download: bool) -> Any:
    return kind(root, split=split, download=download)


def _by_flag(kind: Any, root: str, split: str, download: bool) -> Any:
    return kind(root, train=split == "train", download=download)


def _whole(kind: Any, root: str, split: str, download: bool) -> Any:
    return kind(root, download=download)


MNIST: Final = tuple(
    f"{stem}-ubyte.gz"
    for stem in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


TABLE: Final = {
    "cifar10": Named(partial(_by_flag, datasets.CIFAR10), _arrays, ("cifar-10-python.tar.gz",)),
    "cifar100": Named(partial(_by_flag, datasets.CIFAR100), _arrays, ("cifar-100-python.tar.gz",)),
    "stl10": Named(_stl10, _arrays, ("stl10_binary.tar.gz",), unlabelled="unlabeled"),
    "svhn": Named(
        partial(_by_split, datasets.SVHN),
        _arrays,
        ("train_32x32.mat", "test_32x32.mat"),
        scipy=True,
    ),
    "mnist": Named(partial(_by_flag, datasets.MNIST), _arrays, _in("MNIST/raw", *MNIST)),
    "fashion_mnist": Named(
        partial(_by_flag, datasets.FashionMNIST), _arrays, _in("FashionMNIST/raw", *MNIST)
    ),
    "kmnist": Named(partial(_by_flag, datasets.KMNIST), _arrays, _in("KMNIST/raw", *MNIST)),
    "food101": Named(partial(_by_split, datasets.Food101), _files, ("food-101.tar.gz",)),
    "flowers102": Named(
        partial(_by_split, datasets.Flowers102),
        _files,
        _in("flowers-102", "102flowers.tgz", "imagelabels.mat", "setid.mat"),
        train="train+val",
        scipy=True,
    ),
    "oxford_pets": Named(
        partial(_by_split, datasets.OxfordIIITPet),
        _files,
        _in("oxford-iiit-pet", "images.tar.gz", "annotations.tar.gz"),
        train="trainval",
    ),
    "dtd": Named(
        partial(_by_split, datasets.DTD), _files, ("dtd/dtd-r1.0.1.tar.gz",), train="train+val"
    ),
    "fgvc_aircraft": Named(
        partial(_by_split, datasets.FGVCAircraft),
        _files,
        ("fgvc-aircraft-2013b.tar.gz",),
        train="trainval",
    ),
    "country211": Named(
        partial(_by_split, datasets.Country211), _files, ("country211.tgz",), train="train+valid"
    ),
    "eurosat": Named(partial(_whole, datasets.EuroSAT), _files, ("eurosat/EuroSAT.zip",), val=None),
    "caltech101": Named(
        partial(_whole, datasets.Caltech101), _files, ("caltech101/caltech-101.zip",), val=None
    ),
    "sun397": Named(partial(_whole, datasets.SUN397), _files, ("SUN397.tar.gz",), val=None),
    "imagenette": Named(
        partial(_by_split, datasets.Imagenette), _files, ("imagenette2.tgz",), val="val"
    ),
    "imagenet": Named(
        _imagenet,
        _files,
        _in(
            "imagenet",
            "ILSVRC2012_devkit_t12.tar.gz",
            "ILSVRC2012_img_train.tar",
            "ILSVRC2012_img_val.tar",
        ),
        val="val",
        scipy=True,
    ),
}
