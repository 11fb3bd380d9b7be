"""SimSiam that learns where to learn: its loss for the global and for the aligned embeddings."""

from dataclasses import dataclass

from torch import Tensor

from lewel.losses.cosine import negative_cosine
from lewel.methods.base import About, Count, Method, Step, Views, embedding_std, weighted_step
from lewel.nn.ablations import lewel_head, random_maps
from lewel.nn.backbone import Backbone
from lewel.nn.heads import AlignedHeadSpec, Encoder
from lewel.nn.mlp import MLP, DeepMLP
from lewel.optim.groups import Group


@dataclass(frozen=True)
class AlignedSimSiamHead(AlignedHeadSpec):
    """Projectors of three layers, with a batch norm without weights after the last."""

    def projector(self, inputs: int, outputs: int) -> DeepMLP:
        return DeepMLP(inputs, self.hidden, outputs, self.norm == "batch", last_norm=True)


SIZES = AlignedSimSiamHead(dim=2048, hidden=2048, aligned_dim=2048, groups=32)


class LewelSimSiam(Method):
    """L = (1 - beta) L_g + beta L_a (LEWEL's Eq. 3), each SimSiam's negative cosine.

    The aligned embeddings have a predictor of their own. With beta = 0 nothing of the aligned part
    is built, which is SimSiam; with beta = 1 there is no global loss and so no global predictor.
    """

    about = About(
        name="lewel_simsiam",
        title="LEWEL_SimSiam",
        summary="SimSiam with learned maps: global and aligned embeddings",
        paper="Huang et al., Learning Where to Learn, CVPR 2022, on SimSiam",
        counterpart="simsiam",
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: AlignedSimSiamHead = SIZES,
        predictor_hidden: Count = 512,
    ) -> None:
        super().__init__()
        self.beta = head.aligned_weight
        self.student = Encoder(backbone, lewel_head(backbone.channels, head))
        norm = head.norm == "batch"
        if self.beta < 1:
            self.predict = MLP(head.dim, predictor_hidden, head.dim, norm)
        if self.beta > 0:
            sizes = (head.aligned_dim, predictor_hidden, head.aligned_dim)
            self.predict_aligned = MLP(*sizes, norm)

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the mean of both directions."""
        maps = random_maps(self.student, views[0])  # None unless --head.maps random (Table 6)
        one, two = (self.student(view, maps) for view in views)
        loss_aligned = loss_global = None
        if self.beta > 0:
            loss_aligned = self.loss(self.predict_aligned, one.aligned, two.aligned)
        if self.beta < 1:
            loss_global = self.loss(self.predict, one.pooled, two.pooled)
        logs = {"embedding_std": embedding_std(one.pooled)}
        return weighted_step(loss_global, loss_aligned, self.beta, logs)

    def loss(self, predict: MLP, one: Tensor, two: Tensor) -> Tensor:
        """SimSiam's loss of the embeddings (B, D) or (B, d/h, c) of two views."""
        return (negative_cosine(predict(one), two) + negative_cosine(predict(two), one)) / 2

    def groups(self) -> list[Group]:
        predictors = [child for child in self.children() if isinstance(child, MLP)]
        return [Group([p for one in predictors for p in one.parameters()], anneal=False)]
