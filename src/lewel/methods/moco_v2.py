"""MoCo v2, the baseline of LEWEL_M: tell a view's partner from a queue of other images."""

from torch import Tensor

from lewel.losses.info_nce import info_nce
from lewel.methods.base import Method, Step, both, spread
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Encoder, GlobalHead
from lewel.nn.memory import Queue
from lewel.nn.norm import normalise_in_groups
from lewel.nn.teacher import Statistics, Teacher
from lewel.ops.precision import unit
from lewel.ops.ranks import gather
from lewel.optim.schedules import MomentumSchedule, teacher_momentum


class MoCoV2(Method):
    """Student and teacher have backbone f and projector g; the queue holds the teacher's keys.

    `norm_groups` is ShuffleBN: statistics in so many groups of the global batch (one a rank at
    least), which the teacher sees in another order, so that a view is not known by the company it
    was normalised in.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        dim: int = 128,
        hidden: int = 2048,
        head_norm: bool = True,
        queue: int = 65_536,
        temperature: float = 0.2,
        symmetric: bool = False,
        norm_groups: int = 8,
        statistics: Statistics = "ema",
        momentum: float = 0.999,
        momentum_schedule: MomentumSchedule = "constant",
    ) -> None:
        super().__init__()
        self.temperature, self.symmetric = temperature, symmetric
        self.momentum, self.momentum_schedule = momentum, momentum_schedule
        self.student = Encoder(backbone, GlobalHead(backbone.channels, hidden, dim, head_norm))
        shuffle = normalise_in_groups(self.student, norm_groups)
        self.teacher = Teacher(self.student, statistics, shuffle)
        self.queue = Queue(queue, dim)

    def forward(self, views: list[Tensor]) -> Step:
        """Two views (B, 3, S, S) -> the first told from the queue by the second, or both."""
        one, two = views
        step = self.contrast(one, two)
        return both(step, self.contrast(two, one)) if self.symmetric else step

    def contrast(self, view: Tensor, other: Tensor) -> Step:
        """One direction: the student's view against the teacher's other view and the queue."""
        (target,) = self.teacher(other)
        query, key = unit(self.student(view).pooled), unit(target.pooled)
        loss = info_nce(*self.queue.similarities(query, key), self.temperature)
        logs = {"spread": spread(query), "target_spread": spread(key)}
        return Step(loss, logs, gather(key))

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        alpha = teacher_momentum(self.momentum, progress, self.momentum_schedule)
        self.teacher.update(self.student, alpha)
        assert keys is not None
        self.queue.enqueue(keys)  # after the loss: a view never meets its own key
        return {"teacher_momentum": alpha}
