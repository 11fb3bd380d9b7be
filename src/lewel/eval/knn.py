"""Weighted k-nearest-neighbour classification on frozen features."""

import torch
import torch.nn.functional as F
from torch import Tensor


def knn_predict(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    *,
    neighbours: int = 20,
    temperature: float = 0.1,
    classes: int | None = None,
    chunk: int = 1024,
) -> Tensor:
    """Class scores (Q, K) of queries (Q, C) by their nearest in a bank (M, C) with labels (M,).

    Cosine similarity s; each of the k nearest votes for its class with weight exp(s / temperature).
    """
    classes = int(labels.max()) + 1 if classes is None else classes
    bank = F.normalize(bank, dim=1)
    scores = []
    for part in torch.split(F.normalize(queries, dim=1), chunk):
        similarity, nearest = (part @ bank.T).topk(min(neighbours, len(bank)), dim=1)
        votes = ((similarity - 1) / temperature).exp()  # the same for every chunk
        empty = part.new_zeros(len(part), classes)
        scores.append(empty.scatter_add_(1, labels[nearest], votes))
    return torch.cat(scores)


def knn_accuracy(
    bank: Tensor, labels: Tensor, queries: Tensor, truth: Tensor, *, neighbours: int = 20
) -> float:
    """The share of queries whose best class is the true one."""
    classes = int(max(labels.max(), truth.max())) + 1
    scores = knn_predict(bank, labels, queries, neighbours=neighbours, classes=classes)
    return (scores.argmax(1) == truth).double().mean().item()
