"""LEWEL_B: BYOL that learns where to learn. One page, in the order of the paper's section 3."""

from torch import Tensor

from lewel.losses.cosine import normalised_mse
from lewel.methods.base import About, Method, Step, Views, std_logs, weighted_step
from lewel.nn.ablations import lewel_head, random_maps
from lewel.nn.backbone import Backbone
from lewel.nn.heads import AlignedHeadSpec, Embeddings, Encoder
from lewel.nn.teacher import Teacher, TeacherSpec


class LewelB(Method):
    """L = (1 - beta) L_g + beta L_a (Eq. 3), each a normalised mean square error (Eq. 5).

    beta is `head.aligned_weight`, h `head.groups`, d `head.dim` and c `head.aligned_dim`. The
    student has backbone f, the coupled projector g, the aligned projector p, and the predictors q
    (`predict`) and s (`predict_aligned`); the teacher has f, g and p. With beta = 0 nothing of the
    aligned part is built, which is BYOL; with beta = 1 there is no global loss and so no q.
    """

    about = About(
        name="lewel_b",
        title="LEWEL_B",
        summary="BYOL with learned maps: global and aligned embeddings",
        paper="Huang et al., Learning Where to Learn, CVPR 2022",
        counterpart="byol",
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: AlignedHeadSpec = AlignedHeadSpec(),
        teacher: TeacherSpec = TeacherSpec(),
    ) -> None:
        super().__init__()
        self.beta = head.aligned_weight
        self.student = Encoder(backbone, lewel_head(backbone.channels, head))
        self.teacher = Teacher(self.student, teacher)
        if self.beta < 1:
            self.predict = head.mlp(head.dim, head.dim)
        if self.beta > 0:
            self.predict_aligned = head.mlp(head.aligned_dim, head.aligned_dim)

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the loss in both directions, summed."""
        maps = random_maps(self.student, views[0])  # None unless --head.maps random (Table 6)
        target1, target2 = self.teacher(*views, maps=maps)
        one, two = (self.student(view, maps) for view in views)
        loss_aligned = loss_global = None
        if self.beta > 0:
            loss_aligned = self.aligned_loss(one, target2) + self.aligned_loss(two, target1)
        if self.beta < 1:
            loss_global = self.global_loss(one, target2) + self.global_loss(two, target1)
        logs = std_logs(one.pooled, target1.pooled)
        return weighted_step(loss_global, loss_aligned, self.beta, logs)

    def global_loss(self, view: Embeddings, target: Embeddings) -> Tensor:
        """L_g: the embeddings (B, d) of the pooled features."""
        return normalised_mse(self.predict(view.pooled), target.pooled)

    def aligned_loss(self, view: Embeddings, target: Embeddings) -> Tensor:
        """L_a: the d/h embeddings (B, d/h, c) of the features aggregated by the maps, k by k."""
        assert view.aligned is not None and target.aligned is not None
        return self.predict_aligned.loss(view.aligned, target.aligned, normalised_mse)

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        return {"teacher_momentum": self.teacher.follow(self.student, progress)}
