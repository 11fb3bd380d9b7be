"""SimCLR: contrast an image's two views with the views of all other images of the batch."""

from lewel.losses.nt_xent import nt_xent
from lewel.methods.base import About, Method, Step, Views, embedding_std
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec
from lewel.nn.queue import TemperatureSpec
from lewel.ops.precision import unit


class SimCLR(Method):
    """One network with backbone f and projector g; no teacher and no queue.

    The negatives are the views of all other images of the global batch, and gradients reach them.
    """

    about = About(
        name="simclr",
        title="SimCLR",
        summary="tell the other view from all other images of the batch; no teacher",
        paper="Chen et al., A Simple Framework for Contrastive Learning, ICML 2020",
        counterpart="lewel_simclr",
        in_batch=True,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: HeadSpec = HeadSpec(dim=128, hidden=2048),
        contrast: TemperatureSpec = TemperatureSpec(),
    ) -> None:
        super().__init__()
        self.temperature = contrast.temperature
        self.student = Encoder(backbone, GlobalHead(backbone.channels, head))

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the mean loss of both."""
        one, two = (self.student(view).pooled for view in views)
        loss = nt_xent(unit(one)[:, None], unit(two)[:, None], self.temperature)
        return Step(loss, {"embedding_std": embedding_std(one)})
