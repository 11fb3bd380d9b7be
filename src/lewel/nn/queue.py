"""Negatives of the global loss: MoCo's queue of earlier batches, or the batch itself."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lewel.losses.info_nce import similarities
from lewel.nn.rows import RowBuffers, write_rows
from lewel.ops.ranks import gather, own_rows


@dataclass(frozen=True)
class TemperatureSpec:
    """The only setting of contrastive methods without a queue; the default is SimCLR's."""

    temperature: float = 0.1


@dataclass(frozen=True)
class QueueSpec:
    """Settings of contrastive methods with a queue; the defaults are MoCo v2's."""

    queue: int = 65_536  # keys
    temperature: float = 0.2  # tau of Eq. 4
    symmetric: bool = False  # each view as the query once
    norm_groups: int = 8  # ShuffleBN


@dataclass(frozen=True)
class ContrastSpec(QueueSpec):
    """A QueueSpec whose negatives may be the batch's."""

    negatives: Literal["queue", "batch"] = "queue"  # batch: a control beyond the paper


class Queue(RowBuffers):
    """A ring buffer of normalised keys (size, D), initialised with random unit vectors."""

    large = ("keys",)
    keys: Tensor
    position: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def similarities(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities of unit queries (B, D) to their keys (B,) and to the queue (B, size)."""
        return similarities(query, key, self.keys)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Replace the oldest keys by new ones (B, D); if they are too many, by the last of them."""
        size = len(self.keys)
        keys = keys[-size:]
        places = (self.position + torch.arange(len(keys), device=keys.device)) % size
        write_rows(self.keys, places, keys)
        self.position.copy_((self.position + len(keys)) % size)


class InBatch(nn.Module):
    """The keys of all other images of the global batch, with the queue's interface."""

    def similarities(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities of unit queries (B, D) to their keys (B,) and to all others (B, R B)."""
        others = gather(key)
        positive, negative = similarities(query, key, others)
        own = own_rows(len(others), query.device)
        return positive, negative.masked_fill(own, -torch.inf)

    def enqueue(self, keys: Tensor) -> None:
        """Nothing is kept."""


def make_negatives(spec: ContrastSpec, dim: int) -> Queue | InBatch:
    """Where the negatives of keys (B, dim) come from."""
    return Queue(spec.queue, dim) if spec.negatives == "queue" else InBatch()
