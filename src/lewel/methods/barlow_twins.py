"""Barlow Twins: make the cross-correlation of two views' embeddings the identity."""

from dataclasses import dataclass

from lewel.losses.barlow_twins import cross_correlation, redundancy
from lewel.methods.base import About, Method, Positive, Step, Views, embedding_std
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec
from lewel.nn.mlp import DeepMLP
from lewel.optim.groups import Group, biases_and_norms


@dataclass(frozen=True)
class BarlowHead(HeadSpec):
    """A projector of three layers; the loss normalises its output."""

    def projector(self, inputs: int, outputs: int) -> DeepMLP:
        return DeepMLP(inputs, self.hidden, outputs, self.norm == "batch")


SIZES = BarlowHead(dim=8192, hidden=8192)


class BarlowTwins(Method):
    """One network with backbone and projector; no teacher, no predictor and no negatives.

    The loss is L_BT of the cross-correlation C; `options.off_diagonal_weight` is lambda. Biases and
    norms have `options.bias_lr_scale` times the learning rate of the weights.
    """

    about = About(
        name="barlow_twins",
        title="Barlow Twins",
        summary="make the views' cross-correlation the identity; no teacher, no negatives",
        paper="Zbontar et al., Self-Supervised Learning via Redundancy Reduction, ICML 2021",
        counterpart="lewel_barlow",
        in_batch=True,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: BarlowHead = SIZES,
        off_diagonal_weight: Positive = 0.0051,
        bias_lr_scale: Positive = 0.024,
    ) -> None:
        super().__init__()
        self.off_diagonal_weight, self.bias_lr_scale = off_diagonal_weight, bias_lr_scale
        self.student = Encoder(backbone, GlobalHead(backbone.channels, head))

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the loss of their cross-correlation over the global batch."""
        one, two = (self.student(view).pooled for view in views)
        correlation = cross_correlation(one, two)  # C
        loss = redundancy(correlation, self.off_diagonal_weight)  # L_BT
        return Step(loss, {"embedding_std": embedding_std(one)})

    def groups(self) -> list[Group]:
        return [Group(biases_and_norms(self), lr_scale=self.bias_lr_scale)]
