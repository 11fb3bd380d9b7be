"""The momentum network: a copy of the student that follows it and is never trained."""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from lewel.nn.heads import Embeddings
from lewel.ops.ranks import from_first, gather, share

Statistics = Literal["ema", "eman"]


class Teacher(nn.Module):
    """A copy of a network, updated by xi <- a xi + (1 - a) theta (section 3.1).

    `ema` averages the parameters and normalises with its own batches; `eman` averages the batch
    norm statistics too and always stays in eval mode, so that both views go through in one pass.
    With `shuffle` (ShuffleBN) the global batch is normalised in another order than the student's.
    """

    def __init__(
        self, student: nn.Module, statistics: Statistics = "eman", shuffle: bool = False
    ) -> None:
        super().__init__()
        self.statistics, self.shuffle = statistics, shuffle
        self.network = copy.deepcopy(student).requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Teacher":
        super().train(mode and self.statistics == "ema")
        return self

    @torch.no_grad()
    def forward(self, *views: Tensor, maps: Tensor | None = None) -> list[Embeddings]:
        """Views (B, 3, S, S) each -> their embeddings, none with a gradient.

        `maps` (B, D, N) replace the network's own, for every view.
        """
        if self.training:  # batch statistics are per view
            through = self._shuffled if self.shuffle else self.network
            return [through(view, maps) for view in views]
        many = None if maps is None else torch.cat([maps] * len(views))
        together: Embeddings = self.network(torch.cat(views), many)
        return together.chunk(len(views))

    def _shuffled(self, view: Tensor, maps: Tensor | None) -> Embeddings:
        """A view of all ranks through the network in a random order, given back in its own."""
        images = gather(view)
        order = from_first(torch.randperm(len(images), device=view.device))
        mine = share(order)
        out: Embeddings = self.network(images[mine], None if maps is None else gather(maps)[mine])
        return out.gathered(share(order.argsort()))

    @torch.no_grad()
    def update(self, student: nn.Module, momentum: float) -> None:
        """Move towards the student; integer buffers (batch counters) are copied."""
        mine: list[Tensor] = list(self.network.parameters())
        theirs: list[Tensor] = list(student.parameters())
        if self.statistics == "eman":
            for own, other in zip(self.network.buffers(), student.buffers(), strict=True):
                if own.is_floating_point():
                    mine.append(own)
                    theirs.append(other)
                else:
                    own.copy_(other)
        torch._foreach_lerp_(mine, theirs, 1 - momentum)
