"""LEWEL_B: BYOL that learns where to learn. One page, in the order of the paper's section 3."""

from torch import Tensor

from lewel.losses.cosine import normalised_mse
from lewel.methods.base import Method, Step, spread
from lewel.nn.ablations import Maps, lewel_head, random_maps
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Embeddings, Encoder
from lewel.nn.mlp import MLP
from lewel.nn.teacher import Statistics, Teacher
from lewel.optim.schedules import MomentumSchedule, teacher_momentum


class LewelB(Method):
    """L = (1 - beta) L_g + beta L_a (Eq. 3), each a normalised mean square error (Eq. 5).

    `aligned_weight` is beta, `groups` is h, `dim` is d and `aligned_dim` is c. The student has
    backbone f, the coupled projector g, the aligned projector p, and the predictors q (`predict`)
    and s (`predict_aligned`); the teacher has f, g and p. With beta = 0 nothing of the aligned
    part is built, which is BYOL; with beta = 1 there is no global loss and so no q. `maps` and
    `own_projector` are the paper's ablations (tables 5 and 6).
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        dim: int = 256,
        hidden: int = 4096,
        head_norm: bool = True,
        aligned_dim: int = 256,
        groups: int = 4,
        aligned_weight: float = 0.5,
        maps: Maps = "coupled",
        own_projector: bool = True,
        statistics: Statistics = "eman",
        momentum: float = 0.98,
        momentum_schedule: MomentumSchedule = "cosine",
    ) -> None:
        super().__init__()
        self.aligned_weight = aligned_weight
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
        self.teacher = Teacher(self.student, statistics)
        if aligned_weight < 1:
            self.predict = MLP(dim, hidden, dim, head_norm)
        if aligned_weight > 0:
            self.predict_aligned = MLP(aligned_dim, hidden, aligned_dim, head_norm)

    def forward(self, views: list[Tensor]) -> Step:
        """Two views (B, 3, S, S) -> the loss in both directions, summed."""
        given = random_maps(self.student, views[0])  # else each view looks by its own maps
        target1, target2 = self.teacher(*views, maps=given)
        one, two = (self.student(view, given) for view in views)
        logs = {"spread": spread(one.pooled), "target_spread": spread(target1.pooled)}
        if self.aligned_weight == 0:
            return Step(self.global_loss(one, target2) + self.global_loss(two, target1), logs)
        aligned = self.aligned_loss(one, target2) + self.aligned_loss(two, target1)
        logs["loss_aligned"] = aligned.detach()
        if self.aligned_weight == 1:
            return Step(aligned, logs)
        pooled = self.global_loss(one, target2) + self.global_loss(two, target1)
        logs["loss_global"] = pooled.detach()
        beta = self.aligned_weight
        return Step((1 - beta) * pooled + beta * aligned, logs)  # Eq. 3

    def global_loss(self, view: Embeddings, target: Embeddings) -> Tensor:
        """L_g: the embeddings (B, d) of the pooled features."""
        return normalised_mse(self.predict(view.pooled), target.pooled)

    def aligned_loss(self, view: Embeddings, target: Embeddings) -> Tensor:
        """L_a: the d/h embeddings (B, d/h, c) of the features aggregated by the maps, k by k."""
        assert view.aligned is not None and target.aligned is not None
        return self.predict_aligned.loss(view.aligned, target.aligned, normalised_mse)

    def after_step(self, progress: float, keys: Tensor | None) -> dict[str, float]:
        alpha = teacher_momentum(self.momentum, progress, self.momentum_schedule)
        self.teacher.update(self.student, alpha)
        return {"teacher_momentum": alpha}
