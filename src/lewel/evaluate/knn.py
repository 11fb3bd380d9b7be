"""Weighted k-nearest-neighbour classification on frozen features."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32_000_000  # similarities at a time: 128 MB, independent of the bank's size


def knn_scores(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    neighbours: Sequence[int],
    *,
    temperature: float = 0.1,
    classes: int | None = None,
    chunk: int | None = None,
) -> list[Tensor]:
    """Class scores (Q, K) of queries (Q, C) by the nearest of a bank (M, C), for each given k.

    Cosine similarity s; each of the k nearest votes for its class with weight exp(s / temperature).
    """
    classes = int(labels.max()) + 1 if classes is None else classes
    most = min(max(neighbours), len(bank))
    bank = F.normalize(bank, dim=1)
    scores: list[list[Tensor]] = [[] for _ in neighbours]
    for part in torch.split(queries, chunk or max(1, CHUNK // len(bank))):
        similarity, nearest = (F.normalize(part, dim=1) @ bank.T).topk(most, dim=1)
        votes = ((similarity - 1) / temperature).exp()  # the same scale for every chunk
        for own, k in zip(scores, neighbours, strict=True):
            empty = part.new_zeros(len(part), classes)
            own.append(empty.scatter_add_(1, labels[nearest[:, :k]], votes[:, :k]))
    return [torch.cat(own) for own in scores]


def knn_accuracy(
    bank: Tensor, labels: Tensor, queries: Tensor, targets: Tensor, *, neighbours: int = 20
) -> float:
    """The top-1 accuracy of the queries."""
    classes = int(max(labels.max(), targets.max())) + 1
    (scores,) = knn_scores(bank, labels, queries, [neighbours], classes=classes)
    return (scores.argmax(1) == targets).double().mean().item()
