"""The interface of the training loop to a model: forward, after_step, before_epoch."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from lewel.optim.groups import Group

Keys = Tensor | tuple[Tensor, ...]  # rows of the batch; with accumulation those of all its parts


class Step(NamedTuple):
    """The output of a forward: the loss, scalars to log, keys of all ranks (or None)."""

    loss: Tensor
    logs: dict[str, Tensor]
    keys: Keys | None = None


class Epoch(NamedTuple):
    """What a model may use before an epoch."""

    number: int  # from 0
    # embed(network) -> (N, D) on the device of every rank: network(images (B, 3, S, S)) -> (B, D)
    # of every image of the data, whole and without augmentation, in evaluation mode.
    embed: Callable[[Callable[[Tensor], Tensor]], Tensor]
    progress: Callable[[str, int, int], None]  # shows what is done: text, count, total


class Trainable(nn.Module):
    """A model whose forward takes a micro-batch and returns a `Step`."""

    def after_step(self, progress: float, keys: Any) -> dict[str, float]:
        """Called after each optimiser step, at this fraction of the training -> numbers to log.

        `keys` are those of the steps' forwards, of all micro-batches, or None.
        """
        return {}

    def before_epoch(self, epoch: Epoch) -> None:
        """Called before each epoch on all ranks, with the same random numbers on all.

        What it computes must be kept in buffers: a run that resumes within an epoch loads them and
        does not call it again.
        """

    def groups(self) -> list[Group]:
        """Parameters that are not trained as all others; each in one group at most."""
        return []
