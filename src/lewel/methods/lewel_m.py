"""LEWEL_M: MoCo v2 that learns where to learn. One page, in the order of the paper's section 3."""

import torch
from torch import Tensor

from lewel.losses.info_nce import info_nce
from lewel.methods.base import Method, Step, both, spread
from lewel.nn.ablations import Maps, lewel_head, random_maps
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Embeddings, Encoder
from lewel.nn.memory import Queue
from lewel.nn.norm import normalise_in_groups
from lewel.nn.teacher import Statistics, Teacher
from lewel.ops.precision import unit
from lewel.ops.ranks import gather, share
from lewel.optim.schedules import MomentumSchedule, teacher_momentum


class LewelM(Method):
    """L = (1 - beta) L_g + beta L_a (Eq. 3), each an InfoNCE loss (Eq. 4).

    `aligned_weight` is beta, `groups` is h, `dim` is d and `aligned_dim` is c. Student and teacher
    have backbone f, the coupled projector g and the aligned projector p. The negatives of L_g are
    the queue's; those of L_a are the aligned embeddings of all other images of the global batch.
    With beta = 0 nothing of the aligned part is built, which is MoCo v2; beta = 1 needs no queue.
    `maps` and `own_projector` are the paper's ablations (tables 5 and 6).
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        dim: int = 128,
        hidden: int = 2048,
        head_norm: bool = True,
        aligned_dim: int = 128,
        groups: int = 4,
        aligned_weight: float = 0.5,
        maps: Maps = "coupled",
        own_projector: bool = True,
        queue: int = 65_536,
        temperature: float = 0.2,
        symmetric: bool = False,
        norm_groups: int = 8,
        statistics: Statistics = "ema",
        momentum: float = 0.999,
        momentum_schedule: MomentumSchedule = "constant",
    ) -> None:
        super().__init__()
        self.aligned_weight, self.temperature = aligned_weight, temperature
        self.symmetric = symmetric
        self.momentum, self.momentum_schedule = momentum, momentum_schedule
        head = lewel_head(
            backbone.channels,
            hidden,
            dim,
            aligned_dim=aligned_dim,
            groups=groups,
            aligned_weight=aligned_weight,
            maps=maps,
            norm=head_norm,
            own_projector=own_projector,
        )
        self.student = Encoder(backbone, head)
        shuffle = normalise_in_groups(self.student, norm_groups)
        self.teacher = Teacher(self.student, statistics, shuffle)
        if aligned_weight < 1:
            self.queue = Queue(queue, dim)

    def forward(self, views: list[Tensor]) -> Step:
        """Two views (B, 3, S, S) -> the loss of the first against the second, or of both."""
        one, two = views
        step = self.contrast(one, two)
        return both(step, self.contrast(two, one)) if self.symmetric else step

    def contrast(self, view: Tensor, other: Tensor) -> Step:
        """One direction: the student's view against the teacher's other view."""
        given = random_maps(self.student, view)  # else each view looks by its own maps
        (target,) = self.teacher(other, maps=given)
        student = self.student(view, given)
        key = unit(target.pooled)
        logs = {"spread": spread(student.pooled), "target_spread": spread(key)}
        if self.aligned_weight == 0:
            return Step(self.global_loss(student, key), logs, gather(key))
        aligned = self.aligned_loss(student, target)
        logs["loss_aligned"] = aligned.detach()
        if self.aligned_weight == 1:
            return Step(aligned, logs)
        pooled = self.global_loss(student, key)
        logs["loss_global"] = pooled.detach()
        beta = self.aligned_weight
        return Step((1 - beta) * pooled + beta * aligned, logs, gather(key))  # Eq. 3

    def global_loss(self, view: Embeddings, key: Tensor) -> Tensor:
        """L_g: embeddings (B, d) against keys (B, d) and the queue."""
        similarities = self.queue.similarities(unit(view.pooled), key)
        return info_nce(*similarities, self.temperature)

    def aligned_loss(self, view: Embeddings, target: Embeddings) -> Tensor:
        """L_a: embedding k of an image against embedding k of its other view, and against all
        d/h embeddings (B, d/h, c) of every other image.
        """
        assert view.aligned is not None and target.aligned is not None
        query, key = unit(view.aligned), unit(target.aligned)
        others = gather(key)  # (R B, d/h, c), those of all ranks
        with torch.autocast(query.device.type, enabled=False):
            positive = (query * key).sum(-1)  # (B, d/h)
            similarity = torch.einsum("ikc,jlc->ikjl", query, others)  # every pair of embeddings
        same_image = share(torch.eye(len(others), dtype=torch.bool, device=query.device))
        negative = similarity.masked_fill(same_image[:, None, :, None], -torch.inf)
        return info_nce(positive.flatten(), negative.flatten(2).flatten(0, 1), self.temperature)

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        alpha = teacher_momentum(self.momentum, progress, self.momentum_schedule)
        self.teacher.update(self.student, alpha)
        if keys is not None:
            self.queue.enqueue(keys)  # after the loss: a view never meets its own key
        return {"teacher_momentum": alpha}
