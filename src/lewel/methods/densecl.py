"""DenseCL: MoCo v2, and InfoNCE at every location against the most similar one of the other view.

Wang et al., Dense Contrastive Learning for Self-Supervised Visual Pre-Training, CVPR 2021, in the
order of its section 3. In LEWEL's terms its maps are one-hot, by the similarity of features.
"""

import torch
from torch import Tensor

from lewel.errors import UserError
from lewel.losses.info_nce import info_nce, info_nce_of_many
from lewel.methods.base import About, Method, Step, Views, one_or_both, std_logs
from lewel.nn.backbone import Backbone
from lewel.nn.dense_heads import DenseHead
from lewel.nn.heads import Embeddings, Encoder, HeadSpec
from lewel.nn.norm import shuffle_bn_teacher
from lewel.nn.queue import Queue, QueueSpec
from lewel.nn.teacher import MOCO, TeacherSpec
from lewel.ops.correspondence import at_locations, most_similar
from lewel.ops.precision import unit
from lewel.ops.ranks import gather


class DenseCL(Method):
    """L = (1 - lambda) L_q + lambda L_r, the global and the dense loss; lambda is `dense_weight`.

    Student and teacher have backbone f, a global projector and one for each location. Two queues
    hold the teacher's global keys and the mean over the locations of its dense keys.
    """

    about = About(
        name="densecl",
        title="DenseCL",
        summary="MoCo v2, and the same at every location with its most similar one",
        paper="Wang et al., Dense Contrastive Learning, CVPR 2021",
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: HeadSpec = HeadSpec(dim=128, hidden=2048, norm="none"),
        teacher: TeacherSpec = MOCO,
        contrast: QueueSpec = QueueSpec(),
        dense_weight: float = 0.5,
    ) -> None:
        super().__init__()
        if not 0 < dense_weight < 1:
            raise UserError(
                f"--options.dense_weight is {dense_weight}, but expected between 0 and 1; "
                "--method moco_v2 is DenseCL without its dense loss."
            )
        self.dense_weight = dense_weight
        self.temperature, self.symmetric = contrast.temperature, contrast.symmetric
        self.student = Encoder(backbone, DenseHead(backbone.channels, head))
        self.teacher = shuffle_bn_teacher(self.student, teacher, contrast.norm_groups)
        self.queue = Queue(contrast.queue, head.dim)
        self.dense_queue = Queue(contrast.queue, head.dim)

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the loss of the first against the second, or of both."""
        return one_or_both(self.one_direction, views, self.symmetric)

    def one_direction(self, view: Tensor, other: Tensor) -> Step:
        """The loss of the student's view against the teacher's other view and the queues."""
        (target,) = self.teacher(other)
        student = self.student(view)
        query, key = unit(student.pooled), unit(target.pooled)
        similarities = self.queue.similarities(query, key)
        loss_global = info_nce(*similarities, self.temperature)  # L_q
        loss_dense = self.dense_loss(student, target)
        weight = self.dense_weight
        loss = (1 - weight) * loss_global + weight * loss_dense  # L
        parts = {"loss_global": loss_global.detach(), "loss_dense": loss_dense.detach()}
        assert target.aligned is not None
        keys = torch.cat([key, unit(target.aligned.mean(1))], 1)  # (B, 2 D), for the two queues
        return Step(loss, std_logs(query, key) | parts, gather(keys))

    def dense_loss(self, view: Embeddings, target: Embeddings) -> Tensor:
        """L_r: location i of the query against location c_i of the key, and the dense queue."""
        assert view.aligned is not None and target.aligned is not None
        matched = most_similar(view.features[0], target.features[0])  # c_i
        query, key = unit(view.aligned), at_locations(unit(target.aligned), matched)
        others = self.dense_queue.keys[None]
        return info_nce_of_many(query, key, others, self.temperature)  # L_r

    def after_step(self, progress: float, keys: Tensor) -> dict[str, float]:
        alpha = self.teacher.follow(self.student, progress)
        for queue, rows in zip((self.queue, self.dense_queue), keys.chunk(2, 1), strict=True):
            queue.enqueue(rows)  # after the loss: a view never meets its own key
        return {"teacher_momentum": alpha}
