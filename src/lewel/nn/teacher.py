"""The momentum network: a copy of the student that follows it and is never trained."""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from lewel.nn.heads import Embeddings

Statistics = Literal["ema", "eman"]


class Teacher(nn.Module):
    """A copy of a network, updated by xi <- a xi + (1 - a) theta (section 3.1).

    `ema` averages the parameters and normalises with its own batches; `eman` averages the batch
    norm statistics too and always stays in eval mode, so that both views go through in one pass.
    With `shuffle` (ShuffleBN) a batch is normalised in another order than the student's.
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
    def forward(self, *views: Tensor) -> list[Embeddings]:
        """Views (B, 3, S, S) each -> their embeddings, none with a gradient."""
        if self.training:  # batch statistics are per view
            return [self._shuffled(view) if self.shuffle else self.network(view) for view in views]
        together: Embeddings = self.network(torch.cat(views))
        return together.chunk(len(views))

    def _shuffled(self, view: Tensor) -> Embeddings:
        """A view through the network in a random order, given back in its own."""
        order = torch.randperm(len(view), device=view.device)
        out: Embeddings = self.network(view[order])
        return out.reorder(order.argsort())

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
