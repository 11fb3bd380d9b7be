"""Weighted k-nearest-neighbour classification on frozen features."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.evaluate.scores import best_classes
from lewel.ops.precision import exact_products

CHUNK = 32_000_000  # similarities at a time: 128 MB, independent of the bank's size
STREAMED = 32_768  # queries that are compared with a large bank at a time
PART = 4096  # queries whose votes are counted at a time


class Voting(NamedTuple):
    """How the nearest rows of a bank give class scores: each votes with exp(s / temperature)."""

    neighbours: Sequence[int]  # the values of k
    temperature: float
    classes: int

    def scores(self, similarity: Tensor, labels: Tensor) -> list[Tensor]:
        """Cosines s and labels (Q, k) of the nearest, best first -> (Q, K) for each k."""
        # Relative to the nearest: no temperature makes all votes of a query vanish.
        votes = ((similarity - similarity[:, :1]) / self.temperature).exp()
        empty = votes.new_zeros(len(votes), self.classes)
        return [empty.scatter_add(1, labels[:, :k], votes[:, :k]) for k in self.neighbours]


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
    voting = Voting(neighbours, temperature, classes)
    parts = knn_chunks(F.normalize(bank, dim=1), labels, queries, voting, chunk)
    return [torch.cat(own) for own in zip(*parts, strict=True)]


def knn_chunks(
    bank: Tensor, labels: Tensor, queries: Tensor, voting: Voting, chunk: int | None = None
) -> Iterator[list[Tensor]]:
    """The scores (q, K) of `knn_scores` for a few queries at a time, by a bank of unit rows.

    Besides bank and queries it takes a bounded amount of memory.
    """
    most = min(max(voting.neighbours), len(bank))
    for part in torch.split(queries, chunk or max(1, CHUNK // len(bank))):
        with exact_products():
            similarity, nearest = (F.normalize(part, dim=1) @ bank.T).topk(most, dim=1)
        yield voting.scores(similarity, labels[nearest])


def streamed_chunks(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    voting: Voting,
    beat: Callable[[], None],
) -> Iterator[list[Tensor]]:
    """The scores of `knn_chunks` by a bank that is read once for each STREAMED queries.

    It may be on another device, or in a file. Besides the queries it takes about 1 GB.
    """
    most = min(max(voting.neighbours), len(bank))
    for part in torch.split(F.normalize(queries, dim=1), STREAMED):
        similarity, nearest = streamed_nearest(bank, part, most, beat)
        found = labels[nearest.to(labels.device)].to(part.device)
        pairs = zip(torch.split(similarity, PART), torch.split(found, PART), strict=True)
        yield from (voting.scores(*pair) for pair in pairs)


def streamed_nearest(
    bank: Tensor, units: Tensor, most: int, beat: Callable[[], None]
) -> tuple[Tensor, Tensor]:
    """Similarities and indices (Q, k) of the rows of a bank nearest to queries of unit length."""
    best = units.new_empty(len(units), 0)
    where = torch.empty(len(units), 0, dtype=torch.int64, device=units.device)
    rows = max(1, CHUNK // 2 // (len(units) + bank.shape[1]))
    for start in range(0, len(bank), rows):
        block = F.normalize(bank[start : start + rows].to(units.device), dim=1)
        with exact_products():
            similarity, index = (units @ block.T).topk(min(most, len(block)), dim=1)
        both, places = torch.cat([best, similarity], 1), torch.cat([where, index + start], 1)
        best, order = both.topk(min(most, both.shape[1]), dim=1)
        where = places.gather(1, order)
        beat()
    return best, where


def knn_best(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    neighbours: Sequence[int],
    *,
    temperature: float = 0.1,
    classes: int,
    beat: Callable[[], None] = lambda: None,
    streamed: bool = False,
) -> list[Tensor]:
    """The best classes (Q, 5) of queries (Q, C), the best one first, for each given k.

    The bank (M, C) is normalised in place: with ImageNet's there is no room for another. One that
    is `streamed` may be larger than the memory.
    """
    found: list[list[Tensor]] = [[] for _ in neighbours]
    voting = Voting(neighbours, temperature, classes)
    if streamed:
        parts = streamed_chunks(bank, labels, queries, voting, beat)
    else:
        F.normalize(bank, dim=1, out=bank)
        parts = knn_chunks(bank, labels, queries, voting)
    for part in parts:
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
