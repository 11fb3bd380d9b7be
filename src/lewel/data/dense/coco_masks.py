"""COCO's objects as one mask for each image: where they are, without their classes."""

import numpy as np
import torch
from torch import Tensor

from lewel.data.dense.coco import CocoBoxes
from lewel.data.dense.instances import mask_fault, rasterise
from lewel.data.dense.voc import IGNORED
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.layouts import coco_files
from lewel.data.sources.place import Place


class ObjectMasks:
    """Images of an instances_*.json; 1 is an object, 0 the background, crowds are ignored."""

    labels = None

    def __init__(self, boxes: CocoBoxes) -> None:
        self.boxes, self.name = boxes, boxes.name
        self.classes: tuple[str, ...] | None = ("background", "object")

    def __len__(self) -> int:
        return len(self.boxes)

    def read(self, index: int) -> Tensor:
        return self.boxes.read(index)

    def describe(self, index: int) -> str:
        return self.boxes.describe(index)

    def annotation_bytes(self, index: int) -> bytes:
        return self.boxes.annotation_bytes(index)

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """An image uint8 (3, H, W) and its mask uint8 (H, W); raises UnreadableImage."""
        image = self.read(index)
        height, width = image.shape[1:]
        mask = np.zeros((height, width), np.uint8)
        annotations = self.boxes.record(index)
        for one in sorted(annotations, key=lambda one: -int(one.get("iscrowd", 0))):  # crowds first
            shape = one["segmentation"]
            if fault := mask_fault(shape, (height, width)):
                raise UnreadableImage(f"annotation {one.get('id')} has no mask ({fault})")
            bits = rasterise(shape, (height, width), height, width)
            mask[bits] = IGNORED if one.get("iscrowd") else 1
        return image, torch.from_numpy(mask)


def object_masks(root: Place) -> ObjectMasks | None:
    """The validation images of a COCO folder, or its training images; None without masks."""
    files = coco_files(root)
    if not files:
        return None
    split = min(files, key=lambda name: (not name.startswith("val"), not name.startswith("train")))
    boxes = CocoBoxes(root, files[split], None)
    return ObjectMasks(boxes) if boxes.masked else None
