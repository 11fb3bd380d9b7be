"""The hooks that the training loop knows of a method: forward, after_step, before_epoch."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lewel.nn.heads import Encoder


class Step(NamedTuple):
    """What one forward gives: the loss to descend, numbers to log, keys of all ranks (or None)."""

    loss: Tensor
    logs: dict[str, Tensor]
    keys: Tensor | None = None


class Method(nn.Module):
    """A way to learn without labels. `student.backbone` is what is kept in the end."""

    student: Encoder

    def forward(self, views: list[Tensor]) -> Step:
        """Two views (B, 3, S, S) of the same images -> the step."""
        raise TypeError(f"{type(self).__name__} has no forward")

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        """Once after each optimiser step, at this share of the training -> numbers to log."""
        return {}

    def before_epoch(self) -> None:
        """Once before each epoch."""


def both(one: Step, two: Step) -> Step:
    """The two directions of a symmetric loss, summed."""
    logs = {name: (one.logs[name] + two.logs[name]) / 2 for name in one.logs}
    keys = [step.keys for step in (one, two) if step.keys is not None]
    return Step(one.loss + two.loss, logs, torch.cat(keys) if keys else None)


@torch.no_grad()
def spread(embeddings: Tensor) -> Tensor:
    """How spread out embeddings (B, D) are: 1 for random directions, 0 when all have collapsed.

    The standard deviation of the normalised embeddings over the batch, against 1/sqrt(D).
    """
    normalised = F.normalize(embeddings.float(), dim=-1)
    size: int = embeddings.shape[-1]
    return normalised.std(0, unbiased=False).mean() * math.sqrt(size)
