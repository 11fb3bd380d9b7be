"""What a self-supervised method is, and what the rest of lewel needs to know of it.

The hooks that the training loop calls are those of `lewel.nn.trainable`.
"""

import math
from collections.abc import Callable, Iterable
from typing import Annotated, ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from lewel.nn.heads import Encoder
from lewel.nn.trainable import Keys, Step, Trainable
from lewel.nn.views import Views

__all__ = [
    "About",
    "Count",
    "Method",
    "Positive",
    "Step",
    "Views",
    "Whole",
    "both",
    "embedding_std",
    "one_or_both",
    "std_logs",
    "weighted",
    "weighted_step",
]

View = TypeVar("View")

# Types of a method's own settings: values out of bounds are refused.
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]  # 0 is none
Positive = Annotated[float, Field(gt=0)]


class About(NamedTuple):
    """The names of a method and the crops that it takes, written in the method's own file."""

    name: str  # of its file, and what --method takes
    title: str  # as papers write it
    summary: str  # one line for lists of methods
    paper: str
    counterpart: str | None = None  # the method without its learned maps, or with them
    views: int = 2  # large crops of each image
    small_crops: bool = False  # whether it takes small crops too (`--views.small-crops`)
    in_batch: bool = False  # whether its loss compares the images of a micro-batch


class Method(Trainable):
    """A self-supervised method. `student.backbone` is what is kept in the end.

    The keyword arguments of its constructor are the settings that it takes: `head`, `teacher` and
    `contrast` are groups (`--head.dim`), every other one is the method's own (`--options.NAME`).
    """

    about: ClassVar[About]
    student: Encoder

    def forward(self, views: Views) -> Step:
        """The crops of the same images, (B, 3, S, S) each -> the step."""
        raise TypeError(f"{type(self).__name__} has no forward")

    def remarks(self, epochs: int, steps: int) -> list[str]:
        """What a user should know of a training of this length, one sentence each."""
        return []


def weighted(global_loss: Tensor | None, aligned_loss: Tensor | None, beta: float) -> Tensor:
    """L = (1 - beta) L_g + beta L_a; with beta 0 or 1 the other loss is not computed."""
    if global_loss is None or aligned_loss is None:
        only = aligned_loss if global_loss is None else global_loss
        assert only is not None
        return only
    return (1 - beta) * global_loss + beta * aligned_loss  # Eq. 3


def weighted_step(
    global_loss: Tensor | None,
    aligned_loss: Tensor | None,
    beta: float,
    logs: dict[str, Tensor],
    keys: Keys | None = None,
) -> Step:
    """The step of a loss with global and aligned part; both parts are logged."""
    parts = {"loss_aligned": aligned_loss, "loss_global": global_loss}
    losses = {name: part.detach() for name, part in parts.items() if part is not None}
    return Step(weighted(global_loss, aligned_loss, beta), logs | losses, keys)


def one_or_both(
    contrast: Callable[[View, View], Step], views: Iterable[View], symmetric: bool
) -> Step:
    """The loss of the first view against the second; if `symmetric`, of both directions."""
    one, two = views
    step = contrast(one, two)
    return both(step, contrast(two, one)) if symmetric else step


def both(one: Step, two: Step) -> Step:
    """The two directions of a symmetric loss, summed."""
    logs = {name: (one.logs[name] + two.logs[name]) / 2 for name in one.logs}
    keys = [step.keys for step in (one, two) if isinstance(step.keys, Tensor)]
    return Step(one.loss + two.loss, logs, torch.cat(keys) if keys else None)


@torch.no_grad()
def embedding_std(embeddings: Tensor) -> Tensor:
    """The standard deviation over the batch of normalised embeddings (B, D), times sqrt(D).

    1 for random directions, 0 when all embeddings have collapsed to one.
    """
    normalised = F.normalize(embeddings.float(), dim=-1)
    size: int = embeddings.shape[-1]
    return normalised.std(0, unbiased=False).mean() * math.sqrt(size)


def std_logs(student: Tensor, teacher: Tensor) -> dict[str, Tensor]:
    """The `embedding_std` of student and teacher, (B, D) each, as it is logged."""
    return {
        "embedding_std": embedding_std(student),
        "teacher_embedding_std": embedding_std(teacher),
    }
