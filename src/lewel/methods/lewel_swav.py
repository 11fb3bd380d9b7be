"""SwAV that learns where to learn: its loss for the global and for the aligned embeddings."""

from lewel.errors import UserError
from lewel.methods.base import (
    About,
    Count,
    Positive,
    Step,
    Views,
    Whole,
    embedding_std,
    weighted_step,
)
from lewel.methods.swav import SwAV
from lewel.nn.ablations import lewel_head, random_maps
from lewel.nn.backbone import Backbone
from lewel.nn.heads import AlignedHeadSpec, Encoder
from lewel.nn.queue import TemperatureSpec


class LewelSwAV(SwAV):
    """L = (1 - beta) L_g + beta L_a (LEWEL's Eq. 3), each SwAV's swapped prediction.

    Global and aligned embeddings are assigned to the same prototypes. The codes of the aligned ones
    are balanced over the d/h embeddings of all images of the global batch, without a queue. With
    beta = 0 nothing of the aligned part is built, which is SwAV.
    """

    about = About(
        name="lewel_swav",
        title="LEWEL_SwAV",
        summary="SwAV with learned maps: global and aligned embeddings",
        paper="Huang et al., Learning Where to Learn, CVPR 2022, on SwAV",
        counterpart="swav",
        small_crops=True,
        in_batch=True,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: AlignedHeadSpec = AlignedHeadSpec(dim=128, hidden=2048, aligned_dim=128),
        contrast: TemperatureSpec = TemperatureSpec(),
        prototypes: Count = 3000,
        epsilon: Positive = 0.05,
        frozen_steps: Whole = 313,
        queue: Whole = 0,
        queue_from_epoch: Whole = 15,
    ) -> None:
        if head.aligned_weight > 0 and head.aligned_dim != head.dim:
            raise UserError(
                f"lewel_swav assigns global and aligned embeddings to the same prototypes: "
                f"head.aligned_dim (c) {head.aligned_dim} must be head.dim (d) {head.dim}."
            )
        super().__init__(
            backbone,
            head=head,
            contrast=contrast,
            prototypes=prototypes,
            epsilon=epsilon,
            frozen_steps=frozen_steps,
            queue=queue,
            queue_from_epoch=queue_from_epoch,
        )
        self.beta = head.aligned_weight

    def encoder(self, backbone: Backbone, head: AlignedHeadSpec) -> Encoder:
        return Encoder(backbone, lewel_head(backbone.channels, head))

    def forward(self, views: Views) -> Step:
        """Two large crops and any number of small ones, (B, 3, S, S) each -> the loss."""
        given = {view.shape[-1]: random_maps(self.student, view) for view in views}  # one a size
        crops = [self.student(view, given[view.shape[-1]]) for view in views]
        pooled = [crop.pooled for crop in crops]
        loss_aligned = loss_global = None
        if self.beta > 0:
            loss_aligned = self.swap([crop.aligned.flatten(0, 1) for crop in crops])
        if self.beta < 1:
            loss_global = self.swap(pooled, self.earlier())
        logs = {"embedding_std": embedding_std(pooled[0])}
        return weighted_step(loss_global, loss_aligned, self.beta, logs, self.keys(pooled))
