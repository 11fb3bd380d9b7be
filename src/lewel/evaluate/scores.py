"""Accuracy of class scores: top-1, top-5, interval, accuracy per class and confusion."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lewel.ops.randomness import generator

RESAMPLES = 1000


def best_classes(scores: Tensor) -> Tensor:
    """Scores (Q, K) -> the five best classes (Q, 5), the best one first; all where K < 5."""
    return scores.topk(min(5, scores.shape[1]), dim=1).indices


def accuracy(scores: Tensor, targets: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """The numbers of `accuracy_of_best` for scores (Q, K)."""
    return accuracy_of_best(best_classes(scores), targets, classes)


def accuracy_of_best(best: Tensor, targets: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Best classes (Q, 5) and true ones (Q,) -> top-1 and top-5 accuracy with a 95 % interval,
    the accuracy of each class, and the confusion as [true, predicted, images] of all pairs.
    """
    best, targets = best.cpu(), targets.cpu()
    hits = best == targets[:, None]
    right = hits[:, 0].double().numpy()
    predicted = best[:, 0]
    pairs, counts = np.unique(
        torch.stack([targets, predicted], 1).numpy(), axis=0, return_counts=True
    )
    per_class = {
        name: float(right[targets.numpy() == number].mean())
        for number, name in enumerate(classes)
        if (targets == number).any()
    }
    return {
        "top1": float(right.mean()),
        "top5": hits.any(1).double().mean().item(),
        "interval": bootstrap(right),
        "images": len(targets),
        "per_class": per_class,
        "classes": list(classes),  # indexed by the confusion
        "confusion": [[*pair, n] for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True)],
    }


def bootstrap(right: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of an accuracy, over images drawn with replacement.

    Images are right or wrong, so each resampled accuracy is a draw of a binomial distribution.
    """
    draws = generator(len(right)).binomial(len(right), right.mean(), RESAMPLES) / len(right)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
