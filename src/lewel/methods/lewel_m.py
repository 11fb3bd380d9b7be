"""LEWEL_M: MoCo v2 that learns where to learn. One page, in the order of the paper's section 3."""

from torch import Tensor

from lewel.losses.info_nce import info_nce, info_nce_of_many
from lewel.methods.base import About, Method, Step, Views, one_or_both, std_logs, weighted_step
from lewel.nn.ablations import lewel_head, random_maps
from lewel.nn.backbone import Backbone
from lewel.nn.heads import AlignedHeadSpec, Embeddings, Encoder
from lewel.nn.norm import shuffle_bn_teacher
from lewel.nn.queue import ContrastSpec, make_negatives
from lewel.nn.teacher import MOCO, TeacherSpec
from lewel.ops.precision import unit
from lewel.ops.ranks import gather, rank


class LewelM(Method):
    """L = (1 - beta) L_g + beta L_a (Eq. 3), each an InfoNCE loss (Eq. 4).

    beta is `head.aligned_weight`, h `head.groups`, d `head.dim` and c `head.aligned_dim`. Student
    and teacher have backbone f, the coupled projector g and the aligned projector p. The negatives
    of L_g are the queue's; those of L_a are the aligned embeddings of all other images of the
    global batch. With beta = 0 nothing of the aligned part is built, which is MoCo v2; beta = 1
    needs no queue.
    """

    about = About(
        name="lewel_m",
        title="LEWEL_M",
        summary="MoCo v2 with learned maps: global and aligned embeddings",
        paper="Huang et al., Learning Where to Learn, CVPR 2022",
        counterpart="moco_v2",
        in_batch=True,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: AlignedHeadSpec = AlignedHeadSpec(dim=128, hidden=2048, aligned_dim=128),
        teacher: TeacherSpec = MOCO,
        contrast: ContrastSpec = ContrastSpec(),
    ) -> None:
        super().__init__()
        self.beta = head.aligned_weight
        self.temperature, self.symmetric = contrast.temperature, contrast.symmetric
        self.student = Encoder(backbone, lewel_head(backbone.channels, head))
        self.teacher = shuffle_bn_teacher(self.student, teacher, contrast.norm_groups)
        if self.beta < 1:
            self.queue = make_negatives(contrast, head.dim)

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the loss of the first against the second, or of both."""
        return one_or_both(self.one_direction, views, self.symmetric)

    def one_direction(self, view: Tensor, other: Tensor) -> Step:
        """The loss of the student's view against the teacher's other view."""
        maps = random_maps(self.student, view)  # None unless --head.maps random (Table 6)
        (target,) = self.teacher(other, maps=maps)
        student = self.student(view, maps)
        key = unit(target.pooled)
        loss_aligned = self.aligned_loss(student, target) if self.beta > 0 else None
        loss_global = self.global_loss(student, key) if self.beta < 1 else None
        keys = gather(key) if self.beta < 1 else None
        logs = std_logs(student.pooled, key)
        return weighted_step(loss_global, loss_aligned, self.beta, logs, keys)

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
        keys = gather(key)  # (R B, d/h, c): of all ranks, the image's own among them
        own = rank() * len(query)  # where this rank's images begin: no negatives of themselves
        return info_nce_of_many(query, key, keys, self.temperature, own)

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        alpha = self.teacher.follow(self.student, progress)
        if keys is not None:
            self.queue.enqueue(keys)  # after the loss: a view never meets its own key
        return {"teacher_momentum": alpha}
