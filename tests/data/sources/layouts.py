"""Tiny data sets in the layouts that torchvision expects, a builder for each name."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def image(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(6, 8, 3, seed=seed)).save(path, format="PNG")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cifar(root: Path, folder: str, parts: dict[str, int], meta: str, key: str, labels: str) -> None:
    (root / folder).mkdir(parents=True)
    for seed, (part, count) in enumerate(parts.items()):
        entry = {"data": pixels(count, 3072, seed=seed), labels: [i % 3 for i in range(count)]}
        (root / folder / part).write_bytes(pickle.dumps(entry))
    (root / folder / meta).write_bytes(pickle.dumps({key: ["cat", "dog", "owl"]}))


def cifar10(root: Path) -> None:
    parts = {**{f"data_batch_{i}": 4 for i in range(1, 6)}, "test_batch": 6}
    cifar(root, "cifar-10-batches-py", parts, "batches.meta", "label_names", "labels")


def cifar100(root: Path) -> None:
    parts = {"train": 20, "test": 6}
    cifar(root, "cifar-100-python", parts, "meta", "fine_label_names", "fine_labels")


def stl10(root: Path) -> None:
    folder = root / "stl10_binary"
    write(folder / "class_names.txt", "cat\ndog\nowl\n")
    for seed, (split, count) in enumerate({"train": 20, "test": 6, "unlabeled": 30}.items()):
        pixels(count, 3, 96, 96, seed=seed).tofile(folder / f"{split}_X.bin")
        if split != "unlabeled":
            (np.arange(count) % 3 + 1).astype(np.uint8).tofile(folder / f"{split}_y.bin")


def svhn(root: Path) -> None:
    for split, count in {"train": 20, "test": 6}.items():
        labels = (np.arange(count) % 3 + 8).astype(np.uint8)[:, None]  # 8, 9 and 10, which is 0
        savemat(root / f"{split}_32x32.mat", {"X": pixels(32, 32, 3, count), "y": labels})


def mnist(folder: str) -> Callable[[Path], None]:
    def build(root: Path) -> None:
        raw = root / folder / "raw"
        raw.mkdir(parents=True)
        for split, count in {"train": 20, "t10k": 6}.items():
            head = struct.pack(">IIII", 0x803, count, 28, 28)
            body = pixels(count, 28, 28).tobytes()
            (raw / f"{split}-images-idx3-ubyte").write_bytes(head + body)
            labels = bytes(i % 3 for i in range(count))
            head = struct.pack(">II", 0x801, count)
            (raw / f"{split}-labels-idx1-ubyte").write_bytes(head + labels)

    return build


def food101(root: Path) -> None:
    for split, count in {"train": 10, "test": 3}.items():
        names = {c: [f"{c}/{split}{i}" for i in range(count)] for c in ("pie", "cake")}
        write(root / "food-101/meta" / f"{split}.json", json.dumps(names))
        for seed, name in enumerate(name for part in names.values() for name in part):
            image(root / "food-101/images" / f"{name}.jpg", seed)


def flowers102(root: Path) -> None:
    folder = root / "flowers-102"
    for i in range(1, 27):
        image(folder / "jpg" / f"image_{i:05}.jpg", i)
    savemat(folder / "imagelabels.mat", {"labels": np.arange(26) % 2 + 1})
    splits = {"trnid": np.arange(1, 13), "valid": np.arange(13, 21), "tstid": np.arange(21, 27)}
    savemat(folder / "setid.mat", splits)


def oxford_pets(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    for split, count in {"trainval": 10, "test": 3}.items():
        lines = [
            (f"{name}_{split}{i}", label)
            for label, name in enumerate(("great_pyrenees", "Bombay"), start=1)
            for i in range(count)
        ]
        text = "".join(f"{name} {label} 1 1\n" for name, label in lines)
        write(folder / "annotations" / f"{split}.txt", text)
        for name, _ in lines:
            image(folder / "images" / f"{name}.jpg")


def dtd(root: Path) -> None:
    for split, count in {"train": 6, "val": 4, "test": 3}.items():
        names = [f"{c}/{c}_{split}{i}.jpg" for c in ("dotted", "woven") for i in range(count)]
        write(root / "dtd/dtd/labels" / f"{split}1.txt", "\n".join(names) + "\n")
        for name in names:
            image(root / "dtd/dtd/images" / name)


def fgvc_aircraft(root: Path) -> None:
    folder = root / "fgvc-aircraft-2013b/data"
    write(folder / "variants.txt", "707-320\nA300 B4\n")
    for split, count in {"trainval": 20, "test": 6}.items():
        lines = [f"{split}{i} {('707-320', 'A300 B4')[i % 2]}\n" for i in range(count)]
        write(folder / f"images_variant_{split}.txt", "".join(lines))
        for i in range(count):
            image(folder / "images" / f"{split}{i}.jpg")


def class_folders(*splits: tuple[str, int], classes: tuple[str, ...]) -> Callable[[Path], None]:
    def build(root: Path) -> None:
        for folder, count in splits:
            for name in classes:
                for i in range(1, count + 1):
                    image(root / folder / name / f"image_{i:04}.jpg", i)

    return build


def caltech101(root: Path) -> None:
    names = ("BACKGROUND_Google", "accordion", "yin_yang")
    class_folders(("caltech101/101_ObjectCategories", 10), classes=names)(root)


def sun397(root: Path) -> None:
    write(root / "SUN397/ClassName.txt", "/a/abbey\n/b/bar/indoor\n")
    for i in range(10):
        image(root / f"SUN397/a/abbey/sun_a{i}.jpg")
        image(root / f"SUN397/b/bar/indoor/sun_b{i}.jpg")


def imagenette(root: Path) -> None:
    for split, count in {"train": 10, "val": 3}.items():
        for name in ("n01440764", "n02102040"):
            for i in range(count):
                image(root / "imagenette2" / split / name / f"{i}.JPEG")


LAYOUTS = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "stl10": stl10,
    "svhn": svhn,
    "mnist": mnist("MNIST"),
    "fashion_mnist": mnist("FashionMNIST"),
    "kmnist": mnist("KMNIST"),
    "food101": food101,
    "flowers102": flowers102,
    "oxford_pets": oxford_pets,
    "dtd": dtd,
    "fgvc_aircraft": fgvc_aircraft,
    "country211": class_folders(
        ("country211/train", 6),
        ("country211/valid", 4),
        ("country211/test", 3),
        classes=("AD", "ZW"),
    ),
    "eurosat": class_folders(("eurosat/2750", 10), classes=("Forest", "River")),
    "caltech101": caltech101,
    "sun397": sun397,
    "imagenette": imagenette,
    "imagenet": class_folders(
        ("imagenet/train", 5),
        ("imagenet/val", 2),
        classes=("n01440764", "n01443537", "n01484850", "n01491361"),
    ),
}
