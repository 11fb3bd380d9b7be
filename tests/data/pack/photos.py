"""Small folders of images, and packing them."""

from pathlib import Path

import numpy as np
from PIL import Image

from lewel.cli.main import run

CLASSES = ("cat", "dog", "owl")


def smooth(seed: int, height: int, width: int) -> np.ndarray:
    """An image that JPEG hardly changes, uint8 (height, width, 3)."""
    rough = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.array(Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC))


def make_photos(root: Path, train: int = 30, val: int = 9, side: int = 40) -> Path:
    """A folder with train/ and val/ of three classes, PNG and JPEG in turn."""
    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            folder = root / split / CLASSES[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            seed = number if split == "train" else train + number
            image = Image.fromarray(smooth(seed, side, side + number % 7))
            image.save(folder / f"{number:03}.{'png' if number % 2 else 'jpg'}")
    return root


def pack(source: Path | str, out: Path, *flags: str) -> int:
    """Run `lewel pack` in this process; returns the exit code."""
    flags = flags if "--workers" in flags else (*flags, "--workers", "0")
    return run(["pack", str(source), str(out), *flags])


def make_packed(folder: Path, train: int, val: int, shard_images: int) -> Path:
    """Small photos, packed as they are -> the folder of shards."""
    photos = make_photos(folder / "photos", train=train, val=val, side=20)
    assert pack(photos, folder / "shards", "--keep", "--shard-images", str(shard_images)) == 0
    return folder / "shards"
