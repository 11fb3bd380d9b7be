"""SimCLR that learns where to learn: its loss for the global and for the aligned embeddings."""

from torch import Tensor

from lewel.losses.nt_xent import nt_xent
from lewel.methods.base import About, Method, Step, Views, embedding_std, weighted_step
from lewel.nn.ablations import lewel_head, random_maps
from lewel.nn.backbone import Backbone
from lewel.nn.heads import AlignedHeadSpec, Encoder
from lewel.nn.queue import TemperatureSpec
from lewel.ops.precision import unit


class LewelSimCLR(Method):
    """L = (1 - beta) L_g + beta L_a (LEWEL's Eq. 3), each NT-Xent.

    The negatives of an aligned embedding are all d/h aligned embeddings of both views of all other
    images of the global batch. With beta = 0 nothing of the aligned part is built, which is SimCLR.
    """

    about = About(
        name="lewel_simclr",
        title="LEWEL_SimCLR",
        summary="SimCLR with learned maps: global and aligned embeddings",
        paper="Huang et al., Learning Where to Learn, CVPR 2022, on SimCLR",
        counterpart="simclr",
        in_batch=True,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: AlignedHeadSpec = AlignedHeadSpec(dim=128, hidden=2048, aligned_dim=128),
        contrast: TemperatureSpec = TemperatureSpec(),
    ) -> None:
        super().__init__()
        self.beta, self.temperature = head.aligned_weight, contrast.temperature
        self.student = Encoder(backbone, lewel_head(backbone.channels, head))

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the mean loss of both."""
        maps = random_maps(self.student, views[0])  # None unless --head.maps random (Table 6)
        one, two = (self.student(view, maps) for view in views)
        loss_aligned = loss_global = None
        if self.beta > 0:
            loss_aligned = self.loss(one.aligned, two.aligned)
        if self.beta < 1:
            loss_global = self.loss(one.pooled[:, None], two.pooled[:, None])
        logs = {"embedding_std": embedding_std(one.pooled)}
        return weighted_step(loss_global, loss_aligned, self.beta, logs)

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        """NT-Xent of K embeddings of each view, (B, K, D) and (B, K, D)."""
        return nt_xent(unit(one), unit(two), self.temperature)
