"""Pascal VOC on disk: its folders, its lists, its classes and the colours of its masks."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from lewel.data.sources.check import refuse_outside
from lewel.data.sources.place import Place, read_text
from lewel.errors import UserError

IGNORED: Final = 255  # unlabelled pixels: the borders of objects, and ambiguous ones
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
AUGMENTED: Final = "train_aug"  # the train split with SBD's masks
At = TypeVar("At", bound=Place)
_YEAR = re.compile(r"VOC\d{4}")


def find_voc(root: At) -> At | None:
    """The folder of the newest year at a path or in its VOCdevkit; None if there is none."""
    for folder in (root, root / "VOCdevkit"):
        years = sorted(folder.glob("VOC*"), reverse=True) if folder.is_dir() else []
        for place in (folder, *(year for year in years if _YEAR.fullmatch(year.name))):
            if (place / "JPEGImages").is_dir() and (place / "SegmentationClass").is_dir():
                return place
    return None


def read_list(file: Place) -> str:
    """A list of names; invalid UTF-8 is replaced, and so becomes the name of no file."""
    return read_text(file, "replace")


def read_names(file: Place) -> str:
    """A list of classes, whose names are of no files; raises UserError for other than UTF-8."""
    try:
        text = read_text(file)
    except UnicodeDecodeError as error:
        why = f"byte {error.start + 1} is {error.object[error.start]:#04x}"
    else:
        if "\0" not in text:
            return text
        why = "it holds zero bytes, as UTF-16 does"
    raise UserError(f"{file} is no UTF-8 text ({why}): save it as UTF-8.")


def refuse_twice(names: Iterable[str], where: str) -> None:
    """Raise UserError for a name that a list holds several times: it would count as often."""
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UserError(f"{where} lists {name} {count} times: expected each image once.")


def augmented_list(root: At) -> At | None:
    """The list of train_aug, if it and its masks exist."""
    lists = root / "ImageSets" / "Segmentation"
    named = [lists / f"{name}.txt" for name in (AUGMENTED, "trainaug")]
    if not (root / "SegmentationClassAug").is_dir():
        return None
    return next((file for file in named if file.is_file()), None)


def split_pairs(root: Place, split: str) -> list[tuple[str, str]]:
    """The images of a split and their masks, as paths relative to the root."""
    masks = "SegmentationClass"
    file: Place | None = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    if split == AUGMENTED:
        masks, file = "SegmentationClassAug", augmented_list(root)
    if file is None or not file.is_file():
        known = sorted(path.stem for path in (root / "ImageSets" / "Segmentation").glob("*.txt"))
        more = " and SegmentationClassAug/" if split == AUGMENTED else ""
        raise UserError(
            f"{root} has no split {split!r}: expected ImageSets/Segmentation/{split}.txt{more}; "
            f"the lists there are {', '.join(known) or 'none'}."
        )
    names = read_list(file).split()
    if not names:
        raise UserError(f"{file} is empty: expected the name of an image in each line.")
    refuse_outside(names, file)
    refuse_twice(names, str(file))
    return [(f"JPEGImages/{name}.jpg", f"{masks}/{name}.png") for name in names]


def palette() -> npt.NDArray[np.uint8]:
    """VOC's colours (256, 3): the bits of a class index, distributed over red, green and blue."""
    colours = np.zeros((256, 3), np.uint8)
    for number in range(256):
        for bit in range(8):
            colours[number, bit % 3] |= (number >> bit & 1) << (7 - bit // 3)
    return colours
