"""The teacher (momentum encoder): a moving average of the student, without gradients."""

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lewel.nn.heads import Embeddings
from lewel.ops.ranks import from_rank_0, gather, local_chunk
from lewel.optim.schedules import MomentumSchedule, teacher_momentum

Statistics = Literal["ema", "eman"]


@dataclass(frozen=True)
class TeacherSpec:
    """How a teacher is updated; the defaults are LEWEL_B's."""

    statistics: Statistics = "eman"
    momentum: float = 0.98  # alpha at the start
    schedule: MomentumSchedule = "cosine"


MOCO = TeacherSpec("ema", 0.999, "constant")


class Teacher(nn.Module):
    """A copy of a network, updated by xi <- a xi + (1 - a) theta (section 3.1).

    `ema` averages the parameters and normalises with its own batches; `eman` averages the batch
    norm statistics too and always stays in eval mode, so both views take one forward pass.
    With `shuffle` (ShuffleBN) the global batch is normalised in another order than the student's.
    """

    def __init__(
        self, student: nn.Module, spec: TeacherSpec = TeacherSpec(), shuffle: bool = False
    ) -> None:
        super().__init__()
        self.spec, self.shuffle = spec, shuffle
        self.network = copy.deepcopy(student).requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Teacher":
        super().train(mode and self.spec.statistics == "ema")
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
        """ShuffleBN: the view of all ranks in a random order; the embeddings in the original."""
        images = gather(view)
        order = from_rank_0(torch.randperm(len(images), device=view.device))
        mine = local_chunk(order)
        last = view.is_contiguous(memory_format=torch.channels_last) and not view.is_contiguous()
        layout = torch.channels_last if last else torch.contiguous_format  # lost by the exchange
        chosen = images[mine].contiguous(memory_format=layout)
        out: Embeddings = self.network(chosen, None if maps is None else gather(maps)[mine])
        return out.gathered(local_chunk(order.argsort()))

    def follow(self, student: nn.Module, progress: float) -> float:
        """Update after a step at this fraction of the training -> the momentum alpha."""
        alpha = teacher_momentum(self.spec.momentum, progress, self.spec.schedule)
        self.update(student, alpha)
        return alpha

    @torch.no_grad()
    def update(self, student: nn.Module, momentum: float) -> None:
        """Move towards the student; integer buffers (batch counters) are copied."""
        mine: list[Tensor] = list(self.network.parameters())
        theirs: list[Tensor] = list(student.parameters())
        if self.spec.statistics == "eman":
            for own, other in zip(self.network.buffers(), student.buffers(), strict=True):
                if own.is_floating_point():
                    mine.append(own)
                    theirs.append(other)
                else:
                    own.copy_(other)
        torch._foreach_lerp_(mine, theirs, 1 - momentum)
