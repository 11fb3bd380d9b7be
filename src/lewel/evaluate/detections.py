"""Detections in whole images, in the pixels of the original images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lewel.data.dense.boxes import BoxSource, padded, resized
from lewel.data.dense.instances import encode
from lewel.data.sources.images import UnreadableImage
from lewel.data.views.resize import resize
from lewel.data.workers import leave_signals_to_the_parent
from lewel.errors import RunError
from lewel.ops.ranks import gather_objects, rank, ranks

CHUNK = 16  # masks that are pasted at a time, each as large as the image

Detect = Callable[[Tensor, list[tuple[int, int]]], list[dict[str, Tensor]]]


class ImageDetections(NamedTuple):
    """The detections of one image."""

    image: int  # its index
    boxes: npt.NDArray[np.float32]  # (D, 4)
    classes: npt.NDArray[np.int64]  # (D,): from 1
    scores: npt.NDArray[np.float32]  # (D,)
    masks: list[dict[str, Any]] | None  # run-length encoded


@dataclass(frozen=True)
class Inference:
    """Runs a detector on whole images, resized to a short side."""

    detect: Detect
    short: int
    long: int
    mean: Sequence[float]
    std: Sequence[float]
    divisor: int
    device: torch.device
    workers: int

    @torch.no_grad()
    def run(self, source: BoxSource, advance: Callable[[int], None]) -> list[ImageDetections]:
        """The detections of all images; each rank processes a subset, all ranks get all."""
        mine = list(range(rank(), len(source), ranks()))
        loader = DataLoader(
            _Whole(source, mine, self.short, self.long),
            batch_size=None,
            num_workers=self.workers,
            worker_init_fn=leave_signals_to_the_parent,
            pin_memory=self.device.type == "cuda",
        )
        detections = []
        for index, image, (height, width), reason in loader:
            if reason:
                name = source.describe(index)
                raise RunError(f"{name} is corrupt ({reason}): repair or remove it.")
            images, sizes = padded([image], self.mean, self.std, self.divisor, self.device)
            (found,) = self.detect(images, sizes)
            detections.append(to_image_pixels(index, found, sizes[0], (height, width)))
            advance(1)
        return sorted(gather_objects(detections), key=lambda one: one.image)


class _Whole(Dataset[tuple[int, Tensor, tuple[int, int], str]]):
    """Resized images with their original height and width, or the reason why one is corrupt."""

    def __init__(self, source: BoxSource, indices: list[int], short: int, long: int) -> None:
        self.source, self.indices, self.short, self.long = source, indices, short, long

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[int, Tensor, tuple[int, int], str]:
        index = self.indices[position]
        try:
            image = self.source.read(index)
        except UnreadableImage as error:
            return index, torch.zeros(3, 1, 1, dtype=torch.uint8), (1, 1), str(error)
        height, width = int(image.shape[1]), int(image.shape[2])
        image = resize(image, *resized(height, width, self.short, self.long))
        return index, image, (height, width), ""


def to_image_pixels(
    index: int, found: dict[str, Tensor], from_size: tuple[int, int], to_size: tuple[int, int]
) -> ImageDetections:
    """Detections in an image resized to (h, w), in the pixels of its original (h, w)."""
    boxes = found["boxes"].float()
    scale = boxes.new_tensor([to_size[1] / from_size[1], to_size[0] / from_size[0]] * 2)
    boxes = boxes * scale
    masks = None
    if "masks" in found:
        masks = encode(paste(found["masks"], boxes, *to_size))
    return ImageDetections(
        index,
        boxes.cpu().numpy(),
        found["labels"].cpu().numpy(),
        found["scores"].cpu().float().numpy(),
        masks,
    )


def paste(masks: Tensor, boxes: Tensor, height: int, width: int) -> npt.NDArray[np.bool_]:
    """Masks (D, S, S) of [0, 1] stretched over their boxes (D, 4) -> bool (D, height, width).

    The mask is sampled at each pixel's centre, so that boxes need not be rounded. Only the result
    leaves the device.
    """
    down = torch.arange(height, device=boxes.device) + 0.5
    across = torch.arange(width, device=boxes.device) + 0.5
    parts = [np.zeros((0, height, width), np.bool_)]
    for first in range(0, len(masks), CHUNK):
        shapes, frames = masks[first : first + CHUNK], boxes[first : first + CHUNK]
        left, top, right, bottom = (edge[:, None] for edge in frames.unbind(1))
        x = (across - left) / (right - left) * 2 - 1  # (D, W) in [-1, 1] inside the box
        y = (down - top) / (bottom - top) * 2 - 1
        size = (len(frames), height, width)
        grid = torch.stack([x[:, None].expand(size), y[:, :, None].expand(size)], 3)
        drawn = F.grid_sample(shapes[:, None].float(), grid, align_corners=False)[:, 0]
        parts.append((drawn >= 0.5).cpu().numpy())
    return np.concatenate(parts)


def results_of(detections: Sequence[ImageDetections]) -> list[dict[str, Any]]:
    """Detections in the format of COCO's results files."""
    out = []
    for one in detections:
        for place, (box, number, score) in enumerate(
            zip(one.boxes.tolist(), one.classes.tolist(), one.scores.tolist(), strict=True)
        ):
            left, top, right, bottom = box
            row = {
                "image_id": one.image,
                "category_id": number,
                "bbox": [left, top, right - left, bottom - top],
                "score": score,
            }
            if one.masks is not None:
                row["segmentation"] = one.masks[place]
            out.append(row)
    return out
