"""BYOL, the baseline of LEWEL_B: predict the teacher's embedding of one view from the other."""

from torch import Tensor

from lewel.losses.cosine import normalised_mse
from lewel.methods.base import About, Method, Step, Views, std_logs
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec
from lewel.nn.teacher import Teacher, TeacherSpec


class BYOL(Method):
    """The student has backbone f, projector g and predictor q; the teacher has f and g."""

    about = About(
        name="byol",
        title="BYOL",
        summary="predict the teacher's embedding of the other view; no negatives",
        paper="Grill et al., Bootstrap Your Own Latent, NeurIPS 2020",
        counterpart="lewel_b",
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: HeadSpec = HeadSpec(),
        teacher: TeacherSpec = TeacherSpec(),
    ) -> None:
        super().__init__()
        self.student = Encoder(backbone, GlobalHead(backbone.channels, head))
        self.teacher = Teacher(self.student, teacher)
        self.predict = head.mlp(head.dim, head.dim)

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the loss in both directions, summed: L + L~ of the paper."""
        target1, target2 = self.teacher(*views)
        one, two = (self.student(view) for view in views)
        loss = normalised_mse(self.predict(one.pooled), target2.pooled) + normalised_mse(
            self.predict(two.pooled), target1.pooled
        )
        return Step(loss, std_logs(one.pooled, target1.pooled))

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        return {"teacher_momentum": self.teacher.follow(self.student, progress)}
