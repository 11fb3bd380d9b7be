"""SwAV: predict the cluster assignment of one crop from the others, large and small."""

from typing import Any

import torch
from torch import Tensor, nn

from lewel.losses.swav import swapped_prediction
from lewel.methods.base import About, Count, Method, Positive, Step, Views, Whole, embedding_std
from lewel.nn.backbone import Backbone
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec
from lewel.nn.prototypes import Prototypes
from lewel.nn.queue import Queue, TemperatureSpec
from lewel.nn.trainable import Epoch
from lewel.ops.precision import unit
from lewel.ops.ranks import gather, own_part
from lewel.optim.groups import Group

Earlier = tuple[Tensor | None, Tensor | None]  # embeddings (M, D) for each large crop


class SwAV(Method):
    """One network with backbone and projector, and prototypes; no teacher and no negatives.

    The codes of the two large crops are balanced over the global batch, and over a queue of
    earlier embeddings (`options.queue` for each crop), which small batches need: in the epochs
    from `options.queue_from_epoch` on that begin with a full queue. The prototypes are fixed in
    the first `options.frozen_steps`.
    """

    about = About(
        name="swav",
        title="SwAV",
        summary="predict the prototypes of one crop from the others; small crops",
        paper="Caron et al., Contrasting Cluster Assignments, NeurIPS 2020",
        counterpart="lewel_swav",
        small_crops=True,
        in_batch=True,
    )
    queue_is_used: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: HeadSpec = HeadSpec(dim=128, hidden=2048),
        contrast: TemperatureSpec = TemperatureSpec(),
        prototypes: Count = 3000,
        epsilon: Positive = 0.05,
        frozen_steps: Whole = 313,
        queue: Whole = 0,
        queue_from_epoch: Whole = 15,
    ) -> None:
        super().__init__()
        self.temperature, self.frozen_steps = contrast.temperature, frozen_steps
        self.student = self.encoder(backbone, head)
        # Part of the head, so that they are among the weights that a run keeps.
        self.student.head.prototypes = Prototypes(prototypes, head.dim, epsilon)
        self.queues = nn.ModuleList(Queue(queue, head.dim) for _ in range(2 if queue else 0))
        for one in self.queues.buffers():
            one.zero_()  # a row of zeros is empty
        self.queue_from_epoch, self.uses_queue = queue_from_epoch, False
        self.register_buffer("queue_is_used", torch.zeros((), dtype=torch.bool))

    @property
    def prototypes(self) -> Prototypes:
        """The prototypes that embeddings are assigned to."""
        found = self.student.head.prototypes
        assert isinstance(found, Prototypes)
        return found

    def encoder(self, backbone: Backbone, head: Any) -> Encoder:
        """The network of the student."""
        return Encoder(backbone, GlobalHead(backbone.channels, head))

    def forward(self, views: Views) -> Step:
        """Two large crops and any number of small ones, (B, 3, S, S) each -> the loss."""
        crops = [self.student(view).pooled for view in views]
        loss = self.swap(crops, self.earlier())
        return Step(loss, {"embedding_std": embedding_std(crops[0])}, self.keys(crops))

    def swap(self, crops: list[Tensor], earlier: Earlier = (None, None)) -> Tensor:
        """The codes of the first two crops, each predicted from all others: (N, D) each -> loss."""
        scores = [self.prototypes(crop) for crop in crops]
        large = zip(scores[:2], earlier, strict=True)
        codes = [self.prototypes.codes(score, keys) for score, keys in large]
        return swapped_prediction(scores, codes, self.temperature)  # the multi-crop loss

    def earlier(self) -> Earlier:
        """This rank's part of the queue of each large crop, where it is used."""
        if not self.uses_queue:
            return None, None
        one, two = (own_part(queue.keys) for queue in self.queues if isinstance(queue, Queue))
        return one, two

    def keys(self, crops: list[Tensor]) -> tuple[Tensor, ...] | None:
        """The embeddings of the large crops of all ranks, where there are queues for them."""
        return tuple(gather(unit(crop.detach())) for crop in crops[: len(self.queues)]) or None

    def after_step(self, progress: float, keys: tuple[Tensor, ...] | None) -> dict[str, float]:
        self.prototypes.normalise()
        for queue, rows in zip(self.queues, keys or (), strict=True):
            assert isinstance(queue, Queue)
            queue.enqueue(rows)
        return {}

    def before_epoch(self, epoch: Epoch) -> None:
        full = all(isinstance(one, Queue) and bool(one.keys.any(1).all()) for one in self.queues)
        self.queue_is_used.fill_(full and epoch.number >= self.queue_from_epoch)
        self.set_uses_queue()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.set_uses_queue()

    def set_uses_queue(self) -> None:
        """As the buffer says; read once an epoch, because reading waits for the GPU."""
        self.uses_queue = len(self.queues) > 0 and bool(self.queue_is_used)

    def remarks(self, epochs: int, steps: int) -> list[str]:
        found, title = [], self.about.title
        if steps <= self.frozen_steps:
            found.append(
                f"{title}'s prototypes are fixed in the first {self.frozen_steps:,} steps, and "
                f"this run has {steps:,}: they are never trained. Lower --options.frozen_steps."
            )
        if len(self.queues) and epochs <= self.queue_from_epoch:
            found.append(
                f"{title}'s queue is used after {self.queue_from_epoch} epochs, and this run has "
                f"{epochs}: it is never used. Lower --options.queue_from_epoch."
            )
        return found

    def groups(self) -> list[Group]:
        return [Group([self.prototypes.vectors], frozen_steps=self.frozen_steps)]
