"""Pascal VOC's segmentation split: images and their masks of class numbers."""

import re
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError

from lewel.data.images import read_image
from lewel.errors import UserError

IGNORED: Final = 255  # the seam around objects, and what is too hard to tell
CLASSES: Final = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
_YEAR = re.compile(r"VOC\d{4}")


def find_voc(path: str | Path) -> Path | None:
    """The folder of a year (VOC2012, or the newest) at a path or in its VOCdevkit; None without."""
    root = Path(path).expanduser()
    for folder in (root, root / "VOCdevkit"):
        years = sorted(folder.glob("VOC*"), reverse=True) if folder.is_dir() else []
        for place in (folder, *(year for year in years if _YEAR.fullmatch(year.name))):
            if (place / "JPEGImages").is_dir() and (place / "SegmentationClass").is_dir():
                return place
    return None


class VOC:
    """The images of a split that have masks; pixels of a mask are classes or IGNORED."""

    labels = None  # an image shows several classes
    classes = CLASSES

    def __init__(self, root: str | Path, split: str = "val") -> None:
        place = find_voc(root)
        if place is None:
            raise UserError(
                f"{root} is no Pascal VOC: expected JPEGImages/ and SegmentationClass/ in it, or "
                "in VOCdevkit/VOC2012/."
            )
        self.root, self.split, self.name = place, split, place.name
        self.names = _listed(place / "ImageSets" / "Segmentation" / f"{split}.txt")
        for name in self.names:
            for file in (self._image(name), self._mask(name)):
                if not file.is_file():
                    raise UserError(
                        f"{file} does not exist, but ImageSets/Segmentation/{split}.txt lists "
                        f"{name}: restore it, or take it off the list."
                    )

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return read_image(self._image(self.names[index]))

    def mask(self, index: int) -> npt.NDArray[np.uint8]:
        """The class of each pixel, or IGNORED, (H, W)."""
        name = self.names[index]
        file = self._mask(name)
        try:
            with Image.open(file) as opened, Image.open(self._image(name)) as image:
                if opened.mode not in ("P", "L"):
                    raise UserError(
                        f"{file} holds colours ({opened.mode}), expected class numbers: VOC's own "
                        "masks are PNG files with a palette."
                    )
                if opened.size != image.size:
                    raise UserError(
                        f"{file} has {opened.width} x {opened.height} pixels, its image "
                        f"{image.width} x {image.height}: expected the same size."
                    )
                mask = np.array(opened, dtype=np.uint8)
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise UserError(f"{file} or its image can't be read ({error}): restore it.") from None
        wrong = mask[(mask >= len(CLASSES)) & (mask != IGNORED)]
        if len(wrong):
            raise UserError(
                f"{file} has a pixel of class {int(wrong[0])}: expected 0 to {len(CLASSES) - 1}, "
                f"or {IGNORED} for ignored ones."
            )
        return mask

    def describe(self, index: int) -> str:
        """The image's path, relative to the root."""
        return f"JPEGImages/{self.names[index]}.jpg"

    def _image(self, name: str) -> Path:
        return self.root / "JPEGImages" / f"{name}.jpg"

    def _mask(self, name: str) -> Path:
        return self.root / "SegmentationClass" / f"{name}.png"


def _listed(file: Path) -> list[str]:
    """The names in a list, one a line."""
    try:
        names = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UserError(f"{file} can't be read ({reason}): expected a list of images.") from None
    if not names:
        raise UserError(f"{file} is empty: expected the name of an image in each line.")
    return names
