"""Small data sets with masks, as files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from lewel.data.dense.voc import palette


def save_pair(image: Path, mask: Path, number: int, shape: tuple[int, int] = (20, 30)) -> None:
    """An image with class 0 on the left, another class on the right, and 255 on the border."""
    height, width = shape
    classes = np.zeros(shape, np.uint8)
    classes[:, width // 2 :] = number
    pixels = np.full((height, width, 3), 60, np.uint8)
    pixels[classes > 0] = (40 + 60 * number) % 256
    classes[:, width // 2] = 255
    for path in (image, mask):
        path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(image)
    picture = Image.fromarray(classes, mode="P")
    picture.putpalette(palette().tobytes())
    picture.save(mask)


def make_folder(root: Path, splits: dict[str, int], classes: int = 3) -> Path:
    """images/ and masks/, with so many pairs in each split ("" for none)."""
    for split, count in splits.items():
        for index in range(count):
            save_pair(
                root / "images" / split / f"{split}{index:02d}.png",
                root / "masks" / split / f"{split}{index:02d}.png",
                1 + index % (classes - 1),
                (20 + index % 3, 30),
            )
    return root


def make_voc(
    root: Path, splits: dict[str, Sequence[str]], masks: str = "SegmentationClass"
) -> Path:
    """A VOC2012 folder with lists of names."""
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True, exist_ok=True)
    for split, names in splits.items():
        (lists / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for place, name in enumerate(names):
            save_pair(
                root / "JPEGImages" / f"{name}.jpg", root / masks / f"{name}.png", 1 + place % 20
            )
    return root
