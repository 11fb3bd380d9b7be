"""InstDisc (NPID): every image is a class of its own; its weight vector is in a memory bank.

Wu et al., Unsupervised Feature Learning via Non-Parametric Instance Discrimination, CVPR 2018, in
the order of its section 3.
"""

from dataclasses import dataclass

from torch import Tensor

from lewel.errors import UserError
from lewel.losses.info_nce import info_nce
from lewel.methods.base import About, Method, Step, Views, embedding_std
from lewel.nn.backbone import Backbone
from lewel.nn.bank import MemoryBank
from lewel.nn.heads import Encoder, LinearHead
from lewel.nn.queue import TemperatureSpec
from lewel.ops.precision import unit
from lewel.ops.ranks import gather


@dataclass(frozen=True)
class LinearSpec:
    """The one linear layer."""

    dim: int = 128


class InstDisc(Method):
    """One view, no teacher: the bank holds an embedding of each of the `images`.

    `negatives` entries are drawn in each step; with as many as images it is the paper's softmax
    over all of them.
    """

    about = About(
        name="inst_disc",
        title="InstDisc",
        summary="tell an image from a memory bank of all others; one view",
        paper="Wu et al., Non-Parametric Instance Discrimination, CVPR 2018",
        views=1,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        images: int = 0,
        head: LinearSpec = LinearSpec(),
        contrast: TemperatureSpec = TemperatureSpec(0.07),
        negatives: int = 65_536,
        bank_momentum: float = 0.5,
    ) -> None:
        super().__init__()
        if negatives < 1:
            raise UserError(f"--options.negatives is {negatives}, but expected 1 or more.")
        if not 0 <= bank_momentum < 1:
            raise UserError(
                f"--options.bank_momentum is {bank_momentum}, but expected 0 or more, and below 1."
            )
        self.negatives, self.temperature = negatives, contrast.temperature
        self.student = Encoder(backbone, LinearHead(backbone.channels, head.dim))
        self.bank = MemoryBank(images, head.dim, bank_momentum)

    def forward(self, views: Views) -> Step:
        """One view (B, 3, S, S) -> the loss of its embedding against the bank."""
        embedding = unit(self.student(views[0]).pooled)
        similarities = self.bank.similarities(embedding, views.indices, self.negatives)
        loss = info_nce(*similarities, self.temperature)  # the non-parametric softmax
        logs = {"embedding_std": embedding_std(embedding)}
        return Step(loss, logs, (gather(views.indices), gather(embedding)))

    def after_step(self, progress: float, keys: tuple[Tensor, Tensor]) -> dict[str, float]:
        # v <- m v + (1 - m) z, after the loss: an image never meets its own new entry
        self.bank.update(*keys)
        return {}
