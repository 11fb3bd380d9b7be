"""Barlow Twins that learns where to learn: its loss for global and for aligned embeddings."""

from dataclasses import dataclass

from torch import Tensor

from lewel.losses.barlow_twins import cross_correlation, redundancy
from lewel.methods.base import About, Method, Positive, Step, Views, embedding_std, weighted_step
from lewel.nn.ablations import lewel_head, random_maps
from lewel.nn.backbone import Backbone
from lewel.nn.heads import AlignedHeadSpec, Encoder
from lewel.nn.mlp import DeepMLP
from lewel.optim.groups import Group, biases_and_norms


@dataclass(frozen=True)
class AlignedBarlowHead(AlignedHeadSpec):
    """Projectors of three layers; the loss normalises their output."""

    def projector(self, inputs: int, outputs: int) -> DeepMLP:
        return DeepMLP(inputs, self.hidden, outputs, self.norm == "batch")


SIZES = AlignedBarlowHead(dim=8192, hidden=8192, aligned_dim=8192, groups=128)


class LewelBarlow(Method):
    """L = (1 - beta) L_g + beta L_a (LEWEL's Eq. 3), each the loss of a cross-correlation.

    That of the aligned embeddings is over the d/h embeddings of all images of the global batch.
    With beta = 0 nothing of the aligned part is built, which is Barlow Twins.
    """

    about = About(
        name="lewel_barlow",
        title="LEWEL_Barlow",
        summary="Barlow Twins with learned maps: global and aligned embeddings",
        paper="Huang et al., Learning Where to Learn, CVPR 2022, on Barlow Twins",
        counterpart="barlow_twins",
        in_batch=True,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: AlignedBarlowHead = SIZES,
        off_diagonal_weight: Positive = 0.0051,
        bias_lr_scale: Positive = 0.024,
    ) -> None:
        super().__init__()
        self.beta, self.bias_lr_scale = head.aligned_weight, bias_lr_scale
        self.off_diagonal_weight = off_diagonal_weight
        self.student = Encoder(backbone, lewel_head(backbone.channels, head))

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the losses of their cross-correlations."""
        maps = random_maps(self.student, views[0])  # None unless --head.maps random (Table 6)
        one, two = (self.student(view, maps) for view in views)
        loss_aligned = loss_global = None
        if self.beta > 0:
            loss_aligned = self.loss(one.aligned.flatten(0, 1), two.aligned.flatten(0, 1))
        if self.beta < 1:
            loss_global = self.loss(one.pooled, two.pooled)
        logs = {"embedding_std": embedding_std(one.pooled)}
        return weighted_step(loss_global, loss_aligned, self.beta, logs)

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        """Barlow Twins' loss of embeddings (N, D) and (N, D)."""
        return redundancy(cross_correlation(one, two), self.off_diagonal_weight)

    def groups(self) -> list[Group]:
        return [Group(biases_and_norms(self), lr_scale=self.bias_lr_scale)]
