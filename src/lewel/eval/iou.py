"""How well predicted masks agree with true ones: intersection over union by class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lewel.data.voc import IGNORED
from lewel.ops.randomness import generator

RESAMPLES = 1000


def count_pixels(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Masks (H, W) -> pixels of each class that both, truth and prediction have, int64 (3, K)."""
    counts = truth != IGNORED
    predicted, truth = predicted[counts].long(), truth[counts].long()
    hits = truth[predicted == truth]
    return torch.stack([torch.bincount(x, minlength=classes) for x in (hits, truth, predicted)])


def overlap(counts: Tensor) -> Tensor:
    """Pixels (..., 3, K) -> intersection over union (..., K), float64; NaN for no pixel at all."""
    both, true, predicted = counts.double().unbind(-2)
    return both / (true + predicted - both)


def judge_masks(counts: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Pixels of N images (N, 3, K) -> mIoU with its 95 % interval, the IoU of each class.

    Counts are summed over all images first; a class that neither the truth nor a prediction has
    is left out of the mean.
    """
    total = counts.sum(0)
    each = overlap(total)
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
    """The 95 % interval of the mIoU, by drawing the N images anew with replacement."""
    images = len(counts)
    drawn = generator(images).multinomial(images, np.full(images, 1 / images), RESAMPLES)
    sums = torch.from_numpy(drawn).double() @ counts.double().flatten(1)
    means = overlap(sums.view(RESAMPLES, *counts.shape[1:])).nanmean(-1)
    low, high = np.quantile(means.numpy(), [0.025, 0.975])
    return float(low), float(high)
