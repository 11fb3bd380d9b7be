"""Random crops of images with masks: mmsegmentation's augmentation for segmentation."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from lewel.data.dense.masks import Masked
from lewel.data.dense.voc import IGNORED
from lewel.data.sources.images import UnreadableImage
from lewel.data.views.crop import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    ORDER,
    PHOTOMETRIC_SIZE,
    SATURATION,
    SKIP,
)
from lewel.data.views.loader import Key
from lewel.data.views.resize import resize
from lewel.ops.randomness import generator

SCALES = (0.5, 2.0)
MAX_CLASS_FRACTION = 0.75  # of one class among the labelled pixels of a crop
TRIES = 10  # at a crop of several classes
JITTER = {BRIGHTNESS: 32 / 255, CONTRAST: 0.5, SATURATION: 0.5, HUE: 0.1}
FILL = (124, 116, 104)  # ImageNet's mean colour: nearly 0 after normalisation


class MaskBatch(NamedTuple):
    """B crops from the workers."""

    pixels: Tensor  # uint8 (B, 3, S, S)
    masks: Tensor  # uint8 (B, S, S)
    draws: Tensor  # float32 (B, P), photometric draws for `augment_colours`
    corrupt: list[
        tuple[int, str, str]
    ]  # index, name and reason of each image that could not be read


class MaskCrops(Dataset[MaskBatch]):
    """Random crops of images with masks."""

    def __init__(self, source: Masked, size: int, shorter: int | None, seed: int) -> None:
        self.source, self.size, self.shorter, self.seed = source, size, shorter, seed
        self.sizes = [size]

    def __getitems__(self, keys: list[Key]) -> MaskBatch:
        corrupt: list[tuple[int, str, str]] = []
        crops = [self.crop(epoch, index, corrupt) for epoch, index in keys]
        pixels, masks, draws = zip(*crops, strict=True)
        return MaskBatch(torch.stack(pixels), torch.stack(masks), torch.stack(draws), corrupt)

    def crop(
        self, epoch: int, index: int, corrupt: list[tuple[int, str, str]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One crop, its mask and its photometric draw; the key decides all random draws."""
        uniforms = generator(self.seed, epoch, index).random(11 + 2 * TRIES)
        scale, flip, *photometric = uniforms[:11].tolist()
        draw = draw_photometric(photometric)
        try:
            image, mask = self.source.pair(index)
        except UnreadableImage as error:  # `corrupt` stops the run
            corrupt.append((index, self.source.describe(index), str(error)))
            image = torch.zeros(3, self.size, self.size, dtype=torch.uint8)
            mask = torch.full((self.size, self.size), IGNORED, dtype=torch.uint8)
        low, high = SCALES
        image, mask = resize_both(image, mask, self.shorter, low + (high - low) * scale)
        top, left = draw_place(mask, self.size, uniforms[11:].reshape(TRIES, 2))
        image, mask = cut(image, mask, top, left, self.size)
        if flip < 0.5:
            image, mask = image.flip(2), mask.flip(1)
        return image, mask, draw


def resize_both(
    image: Tensor, mask: Tensor, shorter: int | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Resize an image (3, H, W) and its mask (H, W) by a scale, relative to the size at which the
    shorter side is `shorter`, or to the image's own size."""
    height, width = scaled(mask, shorter, scale)
    if (height, width) == tuple(mask.shape):
        return image, mask
    resized = resize(image, height, width)
    return resized, F.interpolate(mask[None, None], (height, width), mode="nearest-exact")[0, 0]


def scaled(mask: Tensor, shorter: int | None, scale: float = 1.0) -> tuple[int, int]:
    """Height and width of an image (..., H, W) after `resize_both`."""
    height, width = mask.shape[-2:]
    factor = scale if shorter is None else scale * shorter / min(height, width)
    return max(1, round(height * factor)), max(1, round(width * factor))


def draw_place(mask: Tensor, size: int, uniforms: np.ndarray) -> tuple[int, int]:
    """Top and left of the first crop in which no class exceeds 75 %, else of the last one tried.

    `uniforms` (T, 2) give the locations that are tried.
    """
    height, width = mask.shape
    top = left = 0
    for down, across in uniforms.tolist():
        top = int(down * (max(0, height - size) + 1))
        left = int(across * (max(0, width - size) + 1))
        counts = torch.bincount(mask[top : top + size, left : left + size].flatten(), minlength=256)
        known = counts[:IGNORED]
        if known.max() <= MAX_CLASS_FRACTION * known.sum() and known.any():
            break
    return top, left


def cut(image: Tensor, mask: Tensor, top: int, left: int, size: int) -> tuple[Tensor, Tensor]:
    """A crop (3, S, S) and its mask (S, S); pixels outside the image are ignored."""
    mine = mask[top : top + size, left : left + size]
    height, width = mine.shape
    crop = torch.tensor(FILL, dtype=torch.uint8).view(3, 1, 1).repeat(1, size, size)
    crop[:, :height, :width] = image[:, top : top + size, left : left + size]
    labels = torch.full((size, size), IGNORED, dtype=torch.uint8)
    labels[:height, :width] = mine
    return crop, labels


def draw_photometric(uniforms: list[float]) -> Tensor:
    """Nine uniform numbers -> brightness, contrast, saturation and hue, each with probability 0.5.

    Ranges and order are those of mmsegmentation's PhotoMetricDistortion: contrast comes before or
    after saturation and hue. The operations are torchvision's: brightness multiplies, where
    mmsegmentation adds.
    """
    *factors, last = uniforms
    draw = np.zeros(PHOTOMETRIC_SIZE, np.float32)
    for operation, reach in JITTER.items():
        centre = 0.0 if operation == HUE else 1.0
        draw[operation] = centre + reach * (2 * factors[operation] - 1)
    order = [BRIGHTNESS, CONTRAST, SATURATION, HUE]
    if last < 0.5:
        order = [BRIGHTNESS, SATURATION, HUE, CONTRAST]
    draw[ORDER] = [step if factors[4 + step] < 0.5 else SKIP for step in order]
    return torch.from_numpy(draw)
