"""BYOL, the baseline of LEWEL_B: predict the teacher's embedding of one view from the other."""

from torch import Tensor

from lewel.losses.cosine import normalised_mse
from lewel.methods.base import Method, Step, spread
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Encoder, GlobalHead
from lewel.nn.mlp import MLP
from lewel.nn.teacher import Statistics, Teacher
from lewel.optim.schedules import MomentumSchedule, teacher_momentum


class BYOL(Method):
    """The student has backbone f, projector g and predictor q; the teacher has f and g."""

    def __init__(
        self,
        backbone: Backbone,
        *,
        dim: int = 256,
        hidden: int = 4096,
        head_norm: bool = True,
        statistics: Statistics = "eman",
        momentum: float = 0.98,
        momentum_schedule: MomentumSchedule = "cosine",
    ) -> None:
        super().__init__()
        self.momentum, self.momentum_schedule = momentum, momentum_schedule
        self.student = Encoder(backbone, GlobalHead(backbone.channels, hidden, dim, head_norm))
        self.teacher = Teacher(self.student, statistics)
        self.predict = MLP(dim, hidden, dim, head_norm)

    def forward(self, views: list[Tensor]) -> Step:
        """Two views (B, 3, S, S) -> the loss in both directions, summed."""
        target1, target2 = self.teacher(*views)
        one, two = (self.student(view) for view in views)
        loss = normalised_mse(self.predict(one.pooled), target2.pooled) + normalised_mse(
            self.predict(two.pooled), target1.pooled
        )
        return Step(loss, {"spread": spread(one.pooled), "target_spread": spread(target1.pooled)})

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        alpha = teacher_momentum(self.momentum, progress, self.momentum_schedule)
        self.teacher.update(self.student, alpha)
        return {"teacher_momentum": alpha}
