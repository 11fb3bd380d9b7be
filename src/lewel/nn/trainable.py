"""The interface of the training loop to a model: forward, after_step, before_epoch."""

from typing import NamedTuple

from torch import Tensor, nn


class Step(NamedTuple):
    """The output of a forward: the loss, scalars to log, keys of all ranks (or None)."""

    loss: Tensor
    logs: dict[str, Tensor]
    keys: Tensor | None = None


class Trainable(nn.Module):
    """A model whose forward takes a micro-batch and returns a `Step`."""

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        """Called after each optimiser step, at this fraction of the training -> numbers to log."""
        return {}

    def before_epoch(self) -> None:
        """Called before each epoch."""
