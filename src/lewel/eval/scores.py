"""How good class scores are: accuracies, their interval, and what is taken for what."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lewel.ops.randomness import generator

RESAMPLES = 1000


def judge(scores: Tensor, truth: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Scores (Q, K) and true classes (Q,) -> top-1 and top-5 accuracy with a 95 % interval,
    the accuracy of each class, and the confusion as [true, predicted, images] of all pairs.
    """
    best = scores.topk(min(5, scores.shape[1]), dim=1).indices
    hits = best == truth[:, None]
    right = hits[:, 0].double().numpy()
    predicted = best[:, 0]
    pairs, counts = np.unique(
        torch.stack([truth, predicted], 1).numpy(), axis=0, return_counts=True
    )
    per_class = {
        name: float(right[truth.numpy() == number].mean())
        for number, name in enumerate(classes)
        if (truth == number).any()
    }
    return {
        "top1": float(right.mean()),
        "top5": hits.any(1).double().mean().item(),
        "interval": bootstrap(right),
        "images": len(truth),
        "per_class": per_class,
        "classes": list(classes),  # which the confusion's numbers count
        "confusion": [[*pair, n] for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True)],
    }


def bootstrap(right: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean over images, by drawing them anew with replacement.

    Images are right or wrong, so that each new draw is one of a binomial distribution.
    """
    draws = generator(len(right)).binomial(len(right), right.mean(), RESAMPLES) / len(right)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
