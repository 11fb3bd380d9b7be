"""MoCo v2, the baseline of LEWEL_M: contrast an image's two views with a queue of other images."""

from torch import Tensor

from lewel.losses.info_nce import info_nce
from lewel.methods.base import About, Method, Step, Views, one_or_both, std_logs
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec
from lewel.nn.norm import shuffle_bn_teacher
from lewel.nn.queue import ContrastSpec, make_negatives
from lewel.nn.teacher import MOCO, TeacherSpec
from lewel.ops.precision import unit
from lewel.ops.ranks import gather


class MoCoV2(Method):
    """Student and teacher have backbone f and projector g; the queue holds the teacher's keys.

    `contrast.norm_groups` is ShuffleBN: batch statistics in so many groups of the global batch (one
    a rank at least), with the teacher's batch in another order. That prevents information leaking
    through batch statistics.
    """

    about = About(
        name="moco_v2",
        title="MoCo v2",
        summary="tell the other view from a queue of negatives",
        paper="Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020",
        counterpart="lewel_m",
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: HeadSpec = HeadSpec(dim=128, hidden=2048),
        teacher: TeacherSpec = MOCO,
        contrast: ContrastSpec = ContrastSpec(),
    ) -> None:
        super().__init__()
        self.temperature, self.symmetric = contrast.temperature, contrast.symmetric
        self.student = Encoder(backbone, GlobalHead(backbone.channels, head))
        self.teacher = shuffle_bn_teacher(self.student, teacher, contrast.norm_groups)
        self.queue = make_negatives(contrast, head.dim)

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the loss of the first against the second, or of both."""
        return one_or_both(self.one_direction, views, self.symmetric)

    def one_direction(self, view: Tensor, other: Tensor) -> Step:
        """The loss of the student's view against the teacher's other view and the queue."""
        (target,) = self.teacher(other)
        query, key = unit(self.student(view).pooled), unit(target.pooled)
        loss = info_nce(*self.queue.similarities(query, key), self.temperature)  # L_q
        return Step(loss, std_logs(query, key), gather(key))

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        alpha = self.teacher.follow(self.student, progress)
        assert keys is not None
        self.queue.enqueue(keys)  # after the loss: a view never meets its own key
        return {"teacher_momentum": alpha}
