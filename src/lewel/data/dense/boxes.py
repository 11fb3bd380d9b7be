"""Images with boxes: sources for detection, and the samples that a detector is trained on."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import Labels, Source
from lewel.data.views.loader import Key
from lewel.data.views.resize import resize
from lewel.ops.randomness import generator

_LIMIT_KEY = 0xB0C5  # keeps this stream apart from others drawn with the same seed


class Objects(NamedTuple):
    """The M objects of an image, in its own pixels."""

    boxes: npt.NDArray[np.float32]  # (M, 4): x0, y0, x1, y1
    classes: Labels  # (M,): from 1; 0 is the background
    difficult: npt.NDArray[np.bool_]  # (M,): ignored in evaluation


class BoxSource(Source, Protocol):
    """A source of images with annotated objects."""

    notes: tuple[str, ...]  # what was left out, one message each
    masked: bool  # whether objects have masks
    rule: str  # of evaluation: "coco", "voc 11-point" or "voc area" (all-point AP)

    def objects(self, index: int) -> Objects:
        """The objects to train on, or to detect."""

    def counts(self) -> npt.NDArray[np.int64]:
        """How many objects each image has, without reading the images."""

    def masks(self, index: int, height: int, width: int) -> npt.NDArray[np.bool_]:
        """The objects' masks (M, height, width) at this image size."""

    def check_masks(self) -> None:
        """Raise UserError for objects whose masks cannot be drawn."""

    def coco_ground_truth(self) -> dict[str, Any]:
        """All objects in COCO's format; an image's id is its index."""

    def subset(self, indices: npt.NDArray[np.int64]) -> "BoxSource":
        """The source restricted to these images."""


def limited(source: BoxSource, limit: int | None, seed: int) -> BoxSource:
    """At most `limit` images, chosen by the seed; a lower limit gives a subset of a higher one."""
    if limit is None or limit >= len(source):
        return source
    order = generator(seed, _LIMIT_KEY).permutation(len(source))
    return source.subset(np.sort(order[:limit]))


def with_objects(source: BoxSource) -> BoxSource:
    """The images that have objects; a note counts those without."""
    kept = np.flatnonzero(source.counts())
    if len(kept) == len(source):
        return source
    out = source.subset(kept)
    empty = len(source) - len(kept)
    out.notes = (*source.notes, f"{empty:,} images without objects are not trained on.")
    return out


class BoxBatch(NamedTuple):
    """B images of different sizes, and their objects."""

    images: list[Tensor]  # uint8 (3, H, W) each
    targets: list[dict[str, Tensor]]  # boxes (M, 4), labels (M,), perhaps masks (M, H, W)
    corrupt: list[
        tuple[int, str, str]
    ]  # index, name and reason of each image that could not be read


def resized(height: int, width: int, short: int, long: int) -> tuple[int, int]:
    """Height and width with this shorter side, unless the longer one would exceed its limit.

    >>> resized(375, 500, 800, 1333)
    (800, 1067)
    >>> resized(100, 500, 800, 1333)
    (267, 1333)
    """
    scale = min(short / min(height, width), long / max(height, width))
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


class BoxSamples(Dataset[BoxBatch]):
    """Training images at a random short side, randomly flipped; the key decides both.

    Indices wrap around, for data sets smaller than a batch.
    """

    def __init__(
        self, source: BoxSource, shorts: Sequence[int], long: int, seed: int, *, masks: bool
    ) -> None:
        self.source, self.shorts, self.long = source, tuple(shorts), long
        self.seed, self.masks = seed, masks
        self.sizes = [max(shorts)]

    def __getitems__(self, keys: list[Key]) -> BoxBatch:
        batch = BoxBatch([], [], [])
        for epoch, index in keys:
            image, target = self.sample(epoch, index, batch.corrupt)
            batch.images.append(image)
            batch.targets.append(target)
        return batch

    def sample(
        self, epoch: int, index: int, corrupt: list[tuple[int, str, str]]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One image (3, H, W) and its objects."""
        draw = generator(self.seed, epoch, index, 0)
        index %= len(self.source)
        short, flip = int(draw.choice(self.shorts)), bool(draw.random() < 0.5)
        try:
            image = self.source.read(index)
        except UnreadableImage as error:  # `corrupt` stops the run
            corrupt.append((index, self.source.describe(index), str(error)))
            image = torch.zeros(3, short, short, dtype=torch.uint8)
        before = image.shape
        height, width = resized(before[1], before[2], short, self.long)
        image = resize(image, height, width)
        found = self.source.objects(index)
        scale = np.array([width / before[2], height / before[1]] * 2, np.float32)
        target = {
            "boxes": torch.from_numpy(found.boxes * scale),
            "labels": torch.from_numpy(found.classes),
        }
        if self.masks:
            shapes = self.source.masks(index, height, width)
            target["masks"] = torch.from_numpy(np.ascontiguousarray(shapes)).to(torch.uint8)
        return flipped(image, target) if flip else (image, target)


def flipped(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """An image (3, H, W) and its objects, flipped horizontally."""
    width = image.shape[-1]
    out = {**target, "boxes": target["boxes"][:, [2, 1, 0, 3]]}
    out["boxes"][:, [0, 2]] = width - out["boxes"][:, [0, 2]]
    if "masks" in out:
        out["masks"] = out["masks"].flip(-1)
    return image.flip(-1), out


def padded(
    images: Sequence[Tensor],
    mean: Sequence[float],
    std: Sequence[float],
    divisor: int,
    device: torch.device,
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Images uint8 (3, H, W) of any sizes -> normalised (B, 3, H', W') and their sizes.

    They are padded with zeros (the mean colour) to a common size, a multiple of the divisor.
    """
    sizes = [(int(image.shape[1]), int(image.shape[2])) for image in images]
    height, width = (-(-max(sides) // divisor) * divisor for sides in zip(*sizes, strict=True))
    centre = torch.tensor(mean, device=device).view(3, 1, 1)
    scale = torch.tensor(std, device=device).view(3, 1, 1)
    out = torch.zeros(len(images), 3, height, width, device=device)
    for row, image, (h, w) in zip(out, images, sizes, strict=True):
        row[:, :h, :w] = (image.to(device, non_blocking=True).float() / 255 - centre) / scale
    return out, sizes
