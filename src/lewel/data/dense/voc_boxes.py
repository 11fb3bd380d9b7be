"""Pascal VOC's boxes, from the XML files of one or several years."""

import copy
import os
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from lewel.data.dense.boxes import Objects
from lewel.data.dense.instances import Bits
from lewel.data.dense.packed import read_picture
from lewel.data.dense.placed import PlacedFiles, Size
from lewel.data.dense.voc import read_list, refuse_twice
from lewel.data.sources.check import refuse_outside
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.names import Names
from lewel.data.sources.place import Place
from lewel.errors import UserError

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip

Images = list[tuple[str, str]]  # the year's folder ("" for the root itself) and an image's name


class VocBoxes(PlacedFiles):
    """Images and objects of some years and splits."""

    masked = False

    def __init__(
        self, root: Place, images: Images, *, name: str, classes: Sequence[str] | None, rule: str
    ) -> None:
        names = tuple(classes or CLASSES)
        refuse_outside((image for _, image in images), root / "ImageSets")
        paths = [os.path.join(year, "JPEGImages", f"{image}.jpg") for year, image in images]
        super().__init__(root, paths, name=name, classes=names)
        self.rule = rule
        absent = [path for path in paths if not (root / path).is_file()]
        if absent:
            raise UserError(
                f"{len(absent):,} of the {len(paths):,} images that {root} lists do not exist, "
                f"for example {absent[0]}: complete the data set."
            )
        self._all: list[Objects] = []
        self._sizes: list[Size | None] = []
        self._chosen = np.arange(len(images))
        flat: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        for year, image in images:
            file = root / year / "Annotations" / f"{image}.xml"
            objects, stated = read_objects(file, names, classes is not None, flat, unknown)
            picture = root / year / "JPEGImages" / f"{image}.jpg"
            kept = clipped(objects, stated, picture)
            flat[str(file)] += len(objects.boxes) - len(kept.boxes)
            self._all.append(kept)
            self._sizes.append(stated)
        flat += Counter()  # drops zero counts
        if unknown:
            raise UserError(
                f"{unknown.total():,} objects of {root} have an unknown class, for example in "
                f"{next(iter(unknown))}: list the classes to use with --classes FILE."
            )
        self.notes: tuple[str, ...] = ()
        if flat:
            self.notes = (
                f"{flat.total():,} boxes without area are left out, for example in "
                f"{next(iter(flat))}.",
            )

    def subset(self, indices: npt.NDArray[np.int64]) -> "VocBoxes":
        """The source restricted to these images."""
        out = copy.copy(self)
        out._paths = Names.of([self.describe(int(index)) for index in indices])
        out._chosen = self._chosen[indices]
        return out

    def stated_size(self, index: int) -> Size | None:
        return self._sizes[int(self._chosen[index])]

    def annotation_bytes(self, index: int) -> bytes:
        objects = b"".join(part.tobytes() for part in self.objects(index))
        return objects + repr(self.stated_size(index)).encode() + self.stamp(index)

    def objects(self, index: int) -> Objects:
        return self._all[int(self._chosen[index])]

    def counts(self) -> npt.NDArray[np.int64]:
        return np.array([len(self.objects(index).boxes) for index in range(len(self))], np.int64)

    def masks(self, index: int, height: int, width: int) -> Bits:
        raise UserError("Pascal VOC's XML files hold no masks: leave out --masks.")

    def check_masks(self) -> None:
        self.masks(0, 0, 0)

    def coco_ground_truth(self) -> dict[str, Any]:
        raise UserError("Pascal VOC is evaluated with VOC's metric, not with COCO's.")


def clipped(objects: Objects, stated: Size | None, image: Place) -> Objects:
    """Objects with boxes clipped to their image, without those outside of it.

    The image is read only if a box exceeds the size that its XML states, or none is stated.
    """
    boxes = objects.boxes
    if stated and (boxes >= 0).all() and (boxes <= np.array(stated * 2, np.float32)).all():
        return objects
    try:
        height, width = read_picture(image).shape[1:]
    except UnreadableImage:  # it ends the evaluation where it is read
        return objects
    boxes = np.clip(boxes, 0, np.array((width, height) * 2, np.float32))
    inside = (boxes[:, 2:] > boxes[:, :2]).all(1)
    return Objects(boxes[inside], objects.classes[inside], objects.difficult[inside])


def read_objects(
    file: Place, names: tuple[str, ...], only: bool, flat: Counter[str], unknown: Counter[str]
) -> tuple[Objects, Size | None]:
    """The objects of one file and the size that it states; `part` boxes (heads) are skipped.

    Counts boxes without area in `flat`, and objects of other classes in `unknown` unless `only` the
    given ones are wanted.
    """
    boxes, classes, difficult = [], [], []
    try:
        root = ElementTree.fromstring(file.read_bytes())
        sides = [float(root.findtext(f"size/{side}") or "nan") for side in ("width", "height")]
        for node in root.findall("object"):
            name = (node.findtext("name") or "").strip()
            if name not in names:
                unknown[f"{file} ({name!r})"] += not only
                continue
            corners = [
                float(node.findtext(f"bndbox/{c}") or "") for c in ("xmin", "ymin", "xmax", "ymax")
            ]
            if not all(isfinite(corner) for corner in corners):
                raise ValueError(f"the box of {name} is {corners}")
            left, top, right, bottom = corners
            if right <= left or bottom <= top:
                flat[str(file)] += 1
                continue
            # The corners are the first and the last pixel, counted from 1.
            boxes.append((left - 1, top - 1, right, bottom))
            classes.append(1 + names.index(name))
            difficult.append((node.findtext("difficult") or "0").strip() == "1")
    except FileNotFoundError:
        raise UserError(f"{file} does not exist: complete the data set.") from None
    except (ElementTree.ParseError, ValueError) as error:
        why = str(error) if file.read_bytes() else "it is empty"
        raise UserError(f"{file} cannot be read as Pascal VOC's XML ({why}): repair it.") from None
    unknown += Counter()  # drops zero counts
    objects = Objects(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(classes, np.int64),
        np.array(difficult, np.bool_),
    )
    return objects, (sides[0], sides[1]) if min(sides) > 0 else None


def years_of(root: Place) -> list[str]:
    """The folders of a root that are years of Pascal VOC; "" if the root is one itself."""
    if (root / "Annotations").is_dir() and (root / "ImageSets" / "Main").is_dir():
        return [""]
    years = sorted(path.parent.name for path in root.glob("VOC*/Annotations") if path.is_dir())
    if not years and (root / "VOCdevkit").is_dir():
        years = [f"VOCdevkit/{year}" for year in years_of(root / "VOCdevkit")]
    return years


def list_images(root: Place, years: Sequence[str], split: str) -> Images:
    """The images of a split, of all years that have it; `2007/test` is of one year."""
    out: Images = []
    for part in split.split("+"):
        only, _, name = part.rpartition("/")
        files = [
            (year, root / year / "ImageSets" / "Main" / f"{name}.txt")
            for year in years
            if (f"{root.name}/{year}".rstrip("/")).endswith(only)
        ]
        files = [(year, file) for year, file in files if file.is_file()]
        if not files:
            raise UserError(
                f"{root} has no split {part}: expected ImageSets/Main/{name}.txt, or another "
                "--train-split and --val-split."
            )
        for year, file in files:
            lines = [line.split() for line in read_list(file).splitlines()]
            out += [(year, line[0]) for line in lines if line and line[-1] != "-1"]
    if not out:
        raise UserError(f"The split {split} of {root} lists no images: complete the data set.")
    refuse_twice((os.path.join(*one) for one in out), f"The split {split} of {root}")
    return out


def default_splits(root: Place, years: Sequence[str]) -> tuple[str, str]:
    """trainval and test if the test split has XML files, as in 2007; else train and val."""
    for year in years:
        file = root / year / "ImageSets" / "Main" / "test.txt"
        names = read_list(file).split() if file.is_file() else []
        if names and (root / year / "Annotations" / f"{names[0]}.xml").is_file():
            return "trainval", f"{year}/test" if year else "test"
    return "train", "val"


def open_voc(
    root: Place, train: str | None, val: str | None, classes: Sequence[str] | None
) -> tuple[VocBoxes, VocBoxes]:
    """The training and the validation set of a folder of one or several years."""
    root = root.resolve()  # its name is the year
    years = years_of(root)
    usual = default_splits(root, years)
    train, val = train or usual[0], val or usual[1]
    lists = [list_images(root, years, split) for split in (train, val)]
    shared = set(lists[0]) & set(lists[1])
    if shared and train != val:
        raise UserError(
            f"{len(shared):,} images of {root} are both in the training and the validation set, "
            f"for example {min(shared)[1]}: choose other splits."
        )
    used = {year or root.name for year, _ in lists[0]}
    name = "voc" + "".join(sorted(year[-2:] for year in used if year[-4:].isdigit()))
    evaluated = {year or root.name for year, _ in lists[1]}
    eleven = all(year.endswith("2007") for year in evaluated)
    rule = "voc 11-point" if eleven else "voc area"
    sets = [VocBoxes(root, own, name=name, classes=classes, rule=rule) for own in lists]
    return sets[0], sets[1]
