"""Weighted k-nearest-neighbour classification on frozen features."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.evaluate.scores import best_classes
from lewel.ops.precision import exact_products

CHUNK = 32_000_000  # similarities at a time: 128 MB, independent of the bank's size


def nearest(bank: Tensor, queries: Tensor, neighbours: int) -> Tensor:
    """The indices (Q, k) of the rows of a bank (M, C) nearest to queries (Q, C), by cosine."""
    similarity = F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T
    return similarity.topk(min(neighbours, len(bank)), dim=1).indices


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
    """Class scores (Q, K) of queries (Q, C) by the nearest of a bank (M, C), for each given k."""
    classes = int(labels.max()) + 1 if classes is None else classes
    parts = knn_chunks(
        F.normalize(bank, dim=1), labels, queries, neighbours, temperature, classes, chunk
    )
    return [torch.cat(own) for own in zip(*parts, strict=True)]


def knn_chunks(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    neighbours: Sequence[int],
    temperature: float,
    classes: int,
    chunk: int | None = None,
) -> Iterator[list[Tensor]]:
    """The scores (q, K) of `knn_scores` for a few queries at a time, by a bank of unit rows.

    Cosine similarity s; each of the k nearest votes for its class with weight exp(s / temperature).
    Besides bank and queries it takes a bounded amount of memory.
    """
    most = min(max(neighbours), len(bank))
    for part in torch.split(queries, chunk or max(1, CHUNK // len(bank))):
        with exact_products():
            similarity, nearest = (F.normalize(part, dim=1) @ bank.T).topk(most, dim=1)
        votes = ((similarity - 1) / temperature).exp()  # the same scale for every chunk
        empty = part.new_zeros(len(part), classes)
        yield [empty.scatter_add(1, labels[nearest[:, :k]], votes[:, :k]) for k in neighbours]


def knn_best(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    neighbours: Sequence[int],
    *,
    temperature: float = 0.1,
    classes: int,
    beat: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """The best classes (Q, 5) of queries (Q, C), the best one first, for each given k.

    The bank (M, C) is normalised in place: with ImageNet's there is no room for another.
    """
    F.normalize(bank, dim=1, out=bank)
    found: list[list[Tensor]] = [[] for _ in neighbours]
    for part in knn_chunks(bank, labels, queries, neighbours, temperature, classes):
        for own, scores in zip(found, part, strict=True):
            own.append(best_classes(scores))
        beat()
    return [torch.cat(own) for own in found]


def knn_accuracy(
    bank: Tensor, labels: Tensor, queries: Tensor, targets: Tensor, *, neighbours: int = 20
) -> float:
    """The top-1 accuracy of the queries."""
    classes = int(max(labels.max(), targets.max())) + 1
    (scores,) = knn_scores(bank, labels, queries, [neighbours], classes=classes)
    return (scores.argmax(1) == targets).double().mean().item()
