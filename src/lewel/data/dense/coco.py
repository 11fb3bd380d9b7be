"""COCO annotations, from its JSON files."""

import copy
import json
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lewel.data.dense.boxes import Objects
from lewel.data.dense.instances import Bits, mask_fault, rasterise
from lewel.data.dense.placed import PlacedFiles, Size
from lewel.data.sources.check import refuse_outside
from lewel.data.sources.layouts import coco_files
from lewel.data.sources.names import Names
from lewel.data.sources.place import Place, read_text
from lewel.errors import UserError

NUMBERS = {
    "images": ("id", "width", "height"),
    "annotations": ("image_id", "category_id"),
    "categories": ("id",),
}
NAMES = {"images": "file_name", "categories": "name"}
KEPT = ("id", "category_id", "bbox", "area", "iscrowd", "segmentation")  # of an annotation
LARGEST = 2**53  # of a whole number: JSON's are exact up to it
HUGE = 1e9  # pixels: no box lies so far out
FULL_SIZE = 100_000  # a larger training set is taken for COCO's own train2017


class CocoBoxes(PlacedFiles):
    """Images and objects of one instances_*.json."""

    rule = "coco"

    def __init__(self, root: Place, file: Place, classes: Sequence[str] | None) -> None:
        content = read_instances(file)
        categories = sorted(content["categories"], key=lambda one: int(one["id"]))
        if classes is not None:
            known = {one["name"] for one in categories}
            if missing := [name for name in classes if name not in known]:
                raise UserError(f"{file} has no class {missing[0]!r}: correct the list of classes.")
            categories = [one for one in categories if one["name"] in classes]
        self._numbers = {int(one["id"]): n for n, one in enumerate(categories, start=1)}
        self._images = sorted(content["images"], key=lambda one: int(one["id"]))
        refuse_outside((str(one["file_name"]) for one in self._images), file)
        folder = folder_of(root, file, [str(one["file_name"]) for one in self._images])
        paths = [os.path.join(folder, str(one["file_name"])) for one in self._images]
        names = tuple(str(one["name"]) for one in categories)
        super().__init__(root, paths, name=root.name, classes=names)
        self.file = file
        self.notes = self._collect(file, content, classes is not None)

    def _collect(self, file: Place, content: dict[str, Any], only: bool) -> tuple[str, ...]:
        """Store the annotations of each image as JSON, to save memory; return notes."""
        place = {int(one["id"]): index for index, one in enumerate(self._images)}
        if len(place) < len(self._images):
            ids = [int(one["id"]) for one in self._images]
            twice = next(one for one, after in pairwise(ids) if one == after)
            raise UserError(f"{file} lists two images with the id {twice}: give each its own.")
        every: list[list[dict[str, Any]]] = [[] for _ in self._images]
        known = {int(one["id"]) for one in content["categories"]}
        unknown, unlisted = [], []
        for one in content["annotations"]:
            if int(one["category_id"]) not in known:
                unknown.append(one)
            elif int(one["image_id"]) not in place:
                unlisted.append(one)
            elif int(one["category_id"]) in self._numbers:
                every[place[int(one["image_id"])]].append({k: one[k] for k in KEPT if k in one})
        for wrong, what in ((unknown, "a class"), (unlisted, "an image")):
            if wrong:
                raise UserError(
                    f"{len(wrong):,} of the {len(content['annotations']):,} objects of {file} "
                    f"refer to {what} that it does not list, for example annotation "
                    f"{wrong[0].get('id')} (category {wrong[0]['category_id']}): repair the file."
                )
        empty_boxes = [
            one
            for mine, image in zip(every, self._images, strict=True)
            for one in mine
            if _has_no_area(one, image) and not one.get("iscrowd")
        ]
        notes: tuple[str, ...] = ()
        if empty_boxes:
            notes = (
                f"{len(empty_boxes):,} boxes without area inside their image are left out, for "
                f"example annotation {empty_boxes[0].get('id')} of {file}.",
            )
        self.masked = all("segmentation" in one for mine in every for one in mine)
        self._records = [json.dumps(mine).encode() for mine in every]
        self._counts = np.array([len(self._found(n)) for n in range(len(every))], np.int64)
        return notes

    def subset(self, indices: npt.NDArray[np.int64]) -> "CocoBoxes":
        """The source restricted to these images."""
        out = copy.copy(self)
        out._paths = Names.of([self.describe(int(index)) for index in indices])
        out._images = [self._images[index] for index in indices]
        out._counts = self._counts[indices]
        out._records = [self._records[index] for index in indices]
        return out

    def _found(self, index: int) -> list[dict[str, Any]]:
        """The annotations to train on: no crowds, and no boxes without area."""
        every: list[dict[str, Any]] = json.loads(self._records[index])
        image = self._images[index]
        return [one for one in every if not one.get("iscrowd") and not _has_no_area(one, image)]

    def stated_size(self, index: int) -> Size:
        return self._images[index]["width"], self._images[index]["height"]

    def annotation_bytes(self, index: int) -> bytes:
        return self._records[index] + repr(self.stated_size(index)).encode() + self.stamp(index)

    def record(self, index: int) -> list[dict[str, Any]]:
        """All annotations of an image, as the file has them."""
        found: list[dict[str, Any]] = json.loads(self._records[index])
        return found

    def objects(self, index: int) -> Objects:
        found, image = self._found(index), self._images[index]
        boxes = np.array([one["bbox"] for one in found], np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        boxes = np.clip(boxes, 0, np.array([image["width"], image["height"]] * 2, np.float32))
        numbers = [self._numbers[int(one["category_id"])] for one in found]
        return Objects(boxes, np.array(numbers, np.int64), np.zeros(len(found), np.bool_))

    def counts(self) -> npt.NDArray[np.int64]:
        return self._counts

    def masks(self, index: int, height: int, width: int) -> Bits:
        own = int(self._images[index]["height"]), int(self._images[index]["width"])
        bits = [rasterise(one["segmentation"], own, height, width) for one in self._found(index)]
        return np.array(bits, np.bool_).reshape(-1, height, width)

    def check_masks(self) -> None:
        for index, image in enumerate(self._images):
            for one in self.record(index):
                fault = mask_fault(one.get("segmentation"), (image["height"], image["width"]))
                if fault is not None:
                    raise UserError(
                        f"{self.file}: annotation {one.get('id')} has no mask ({fault}): repair "
                        "it, or leave out --masks."
                    )

    def ids(self) -> tuple[list[int], dict[int, int]]:
        """The file's id of each image, and of each class number."""
        categories = {number: category for category, number in self._numbers.items()}
        return [int(one["id"]) for one in self._images], categories

    def coco_ground_truth(self) -> dict[str, Any]:
        annotations = [
            {
                "area": one["bbox"][2] * one["bbox"][3],
                **one,
                "iscrowd": int(one.get("iscrowd", 0)),
                "id": 0,
                "image_id": index,
                "category_id": self._numbers[int(one["category_id"])],
            }
            for index, record in enumerate(self._records)
            for one in json.loads(record)
        ]
        for number, one in enumerate(annotations, start=1):
            one["id"] = number  # 0 would count as unmatched
        return {
            "images": [
                {"id": index, "height": int(one["height"]), "width": int(one["width"])}
                for index, one in enumerate(self._images)
            ],
            "annotations": annotations,
            "categories": [{"id": n, "name": name} for n, name in enumerate(self.classes or (), 1)],
        }


def _has_no_area(annotation: dict[str, Any], image: dict[str, Any]) -> bool:
    """Whether a box has no area inside its image."""
    left, top, width, height = annotation["bbox"]
    across = min(left + width, image["width"]) - max(left, 0)
    down = min(top + height, image["height"]) - max(top, 0)
    return bool(across <= 0 or down <= 0)


def read_instances(file: Place) -> dict[str, Any]:
    """The content of an instances_*.json, checked."""
    try:
        text = read_text(file)
        content: dict[str, Any] = json.loads(text, parse_constant=_refuse_constant)
        complete = all(
            isinstance(content[key], list) for key in ("images", "annotations", "categories")
        )
    except (ValueError, TypeError, KeyError) as error:
        why = f"{type(error).__name__}: {error}" if file.read_bytes() else "it is empty"
        raise UserError(f"{file} cannot be read as COCO's JSON ({why}): repair it.") from None
    empty = [key for key in NUMBERS if complete and not content[key]]
    if not complete or empty:
        what = " and ".join(empty) or "images, annotations or categories"
        raise UserError(f"{file} holds no {what}: expected COCO's instances_*.json.")
    for key, numbers in NUMBERS.items():
        for one in content[key]:
            if field := missing_field(one, numbers, NAMES.get(key), key == "annotations"):
                about = json.dumps(one)[:80]
                raise UserError(
                    f"{file} has {key} without {field}, for example {about}: repair it."
                )
    return content


def missing_field(one: Any, numbers: Sequence[str], name: str | None, boxed: bool) -> str | None:
    """What an entry of COCO's JSON is missing, if anything."""
    if not isinstance(one, dict):
        return "keys"
    for key in numbers:
        n: Any = one.get(key)
        if type(n) not in (int, float) or n % 1 or abs(n) > LARGEST:
            return f"a number as {key}"
    if name is not None and not isinstance(one.get(name), str):
        return name
    if type(one.get("area", 0)) not in (int, float):
        return f"a number as area (it is {one['area']!r})"
    if one.get("iscrowd", 0) not in (0, 1):
        return f"0 or 1 as iscrowd (it is {one['iscrowd']!r})"
    box = one.get("bbox")
    four = (
        isinstance(box, list)
        and len(box) == 4
        and all(type(n) in (int, float) and abs(n) < HUGE for n in box)
    )
    return "a bbox of four numbers" if boxed and not four else None


def _refuse_constant(name: str) -> None:
    """NaN and Infinity, which Python's JSON reads and JSON does not have."""
    raise ValueError(f"it holds {name}, which is no number")


def folder_of(root: Place, file: Place, names: Sequence[str]) -> str:
    """The folder of a JSON file's images, relative to the root."""
    split = file.stem.removeprefix("instances_")
    for folder in (split, f"images/{split}", "images", ""):
        if (root / folder / names[0]).is_file():
            absent = [name for name in names if not (root / folder / name).is_file()]
            if absent:
                raise UserError(
                    f"{len(absent):,} of the {len(names):,} images that {file} lists are not in "
                    f"{root / folder}, for example {absent[0]}: complete the data set."
                )
            return folder
    raise UserError(
        f"The images that {file} lists do not exist, for example {names[0]}: expected them in "
        f"{root / split}."
    )


def open_coco(
    root: Place, train: str | None, val: str | None, classes: Sequence[str] | None
) -> tuple[CocoBoxes, CocoBoxes]:
    """The training and the validation set."""
    found = coco_files(root)
    out = []
    for given, word in ((train, "train"), (val, "val")):
        name = given or next((one for one in found if one.startswith(word)), "")
        if name not in found:
            raise UserError(
                f"{root} has no annotations/instances_{given or word + '*'}.json: it has "
                f"{', '.join(found) or 'none'}."
            )
        out.append(CocoBoxes(root, found[name], classes))
    train_set, val_set = out
    if train_set.classes != val_set.classes:
        raise UserError(
            f"{root} lists different classes for training and validation: repair the files."
        )
    names = ({one.describe(index) for index in range(len(one))} for one in out)
    shared = set.intersection(*names)
    if shared and train_set.file != val_set.file:
        raise UserError(
            f"{len(shared):,} images of {root} are both in the training and the validation set, "
            f"for example {min(shared)}: choose other splits."
        )
    if len(train_set) > FULL_SIZE:
        train_set.name = val_set.name = "coco"
    return train_set, val_set
