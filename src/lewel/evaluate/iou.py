"""Mean intersection over union (mIoU) of predicted masks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lewel.data.dense.voc import IGNORED
from lewel.ops.randomness import generator

RESAMPLES = 1000


def count_pixels(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    """Masks (H, W) -> pixels of each class: correct, in the target, predicted; int64 (3, K)."""
    counts = target != IGNORED
    predicted, target = predicted[counts].long(), target[counts].long()
    hits = target[predicted == target]
    return torch.stack([torch.bincount(x, minlength=classes) for x in (hits, target, predicted)])


def class_iou(counts: Tensor) -> Tensor:
    """Pixels (..., 3, K) -> IoU of each class (..., K), float64; NaN for a class without pixels."""
    both, true, predicted = counts.double().unbind(-2)
    return both / (true + predicted - both)


def mean_iou(counts: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Pixels of N images (N, 3, K) -> mIoU with its 95 % interval, the IoU of each class.

    Counts are summed over all images first; a class without pixels in ground truth and
    predictions is left out of the mean.
    """
    total = counts.sum(0)
    each = class_iou(total)
    return {
        "miou": float(each.nanmean()),
        "interval": bootstrap(counts),
        "pixel_accuracy": float(total[0].sum() / total[1].sum().clamp(min=1)),
        "images": len(counts),
        "per_class": {
            name: value
            for name, value in zip(classes, each.tolist(), strict=True)
            if not np.isnan(value)
        },
    }


def bootstrap(counts: Tensor) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mIoU, over N images drawn with replacement."""
    images = len(counts)
    drawn = generator(images).multinomial(images, np.full(images, 1 / images), RESAMPLES)
    sums = torch.from_numpy(drawn).double() @ counts.double().flatten(1)
    means = class_iou(sums.view(RESAMPLES, *counts.shape[1:])).nanmean(-1)
    low, high = np.quantile(means.numpy(), [0.025, 0.975])
    return float(low), float(high)
