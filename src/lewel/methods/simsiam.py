"""SimSiam: predict the other view's embedding, whose gradient is stopped."""

from dataclasses import dataclass

from lewel.losses.cosine import negative_cosine
from lewel.methods.base import About, Count, Method, Step, Views, embedding_std
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec
from lewel.nn.mlp import MLP, DeepMLP
from lewel.optim.groups import Group


@dataclass(frozen=True)
class SimSiamHead(HeadSpec):
    """A projector of three layers, with a batch norm without weights after the last."""

    def projector(self, inputs: int, outputs: int) -> DeepMLP:
        return DeepMLP(inputs, self.hidden, outputs, self.norm == "batch", last_norm=True)


SIZES = SimSiamHead(dim=2048, hidden=2048)


class SimSiam(Method):
    """One network with backbone and projector f and predictor h; no teacher and no negatives.

    `options.predictor_hidden` are the predictor's hidden units. Its learning rate is not annealed.
    """

    about = About(
        name="simsiam",
        title="SimSiam",
        summary="predict the other view's embedding; no teacher, no negatives",
        paper="Chen and He, Exploring Simple Siamese Representation Learning, CVPR 2021",
        counterpart="lewel_simsiam",
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: SimSiamHead = SIZES,
        predictor_hidden: Count = 512,
    ) -> None:
        super().__init__()
        self.student = Encoder(backbone, GlobalHead(backbone.channels, head))
        self.predict = MLP(head.dim, predictor_hidden, head.dim, head.norm == "batch")

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the mean of both directions."""
        one, two = (self.student(view).pooled for view in views)
        loss = (
            negative_cosine(self.predict(one), two) + negative_cosine(self.predict(two), one)
        ) / 2  # the symmetrised loss, with stop-gradient
        return Step(loss, {"embedding_std": embedding_std(one)})

    def groups(self) -> list[Group]:
        return [Group(list(self.predict.parameters()), anneal=False)]
