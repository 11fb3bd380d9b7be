"""PCL: MoCo, and InfoNCE against the centroids of clusters of all images.

Li et al., Prototypical Contrastive Learning of Unsupervised Representations, ICLR 2021, in the
order of its section 3. `projector` linear is PCL v1, mlp (with MoCo v2's views) PCL v2.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from lewel.errors import UserError
from lewel.losses.info_nce import info_nce
from lewel.methods.base import About, Method, Step, Views, one_or_both, std_logs
from lewel.nn.backbone import Backbone
from lewel.nn.centroids import Centroids
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec, LinearHead
from lewel.nn.norm import shuffle_bn_teacher
from lewel.nn.queue import Queue, QueueSpec
from lewel.nn.teacher import MOCO, TeacherSpec
from lewel.nn.trainable import Epoch
from lewel.ops.precision import unit
from lewel.ops.ranks import gather

GRANULARITIES = 3  # each has twice as many clusters as the one before
FRACTION = 25_000 / 1_281_167  # clusters of the coarsest for each image: the paper's on ImageNet


class PCL(Method):
    """L = L_InfoNCE + the mean over granularities of L_Proto (ProtoNCE).

    Before each epoch, after the first `warmup` ones, the teacher's embeddings of all images are
    clustered. `clusters` is the number of the coarsest granularity; by default the paper's 25,000
    on ImageNet, fewer for fewer images. The negatives of a centroid are at most `contrast.queue`
    others.
    """

    about = About(
        name="pcl",
        title="PCL",
        summary="MoCo, and tell an image's cluster from others; k-means before each epoch",
        paper="Li et al., Prototypical Contrastive Learning, ICLR 2021",
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        images: int = 0,
        head: HeadSpec = HeadSpec(dim=128, hidden=2048, norm="none"),
        teacher: TeacherSpec = MOCO,
        contrast: QueueSpec = QueueSpec(queue=16_384),
        projector: Literal["linear", "mlp"] = "mlp",
        clusters: int | None = None,
        warmup: int = 20,
        iterations: int = 20,
        restarts: int = 5,
    ) -> None:
        super().__init__()
        least = (("warmup", warmup, 0), ("iterations", iterations, 1), ("restarts", restarts, 1))
        for name, value, lowest in least:
            if value < lowest:
                raise UserError(f"--options.{name} is {value}, but expected {lowest} or more.")
        self.temperature, self.symmetric = contrast.temperature, contrast.symmetric
        self.warmup, self.iterations, self.restarts = warmup, iterations, restarts
        self.negatives = contrast.queue  # r
        linear = projector == "linear"
        channels = backbone.channels
        own = LinearHead(channels, head.dim) if linear else GlobalHead(channels, head)
        self.student = Encoder(backbone, own)
        self.teacher = shuffle_bn_teacher(self.student, teacher, contrast.norm_groups)
        self.queue = Queue(contrast.queue, head.dim)
        self.prototypes = Centroids(images, head.dim, cluster_counts(images, clusters))

    def before_epoch(self, epoch: Epoch) -> None:
        """The E-step: k-means of the teacher's embeddings of all images (section 3.2)."""
        if epoch.number >= self.warmup:
            embeddings = epoch.embed(lambda images: self.teacher.network(images).pooled)
            search = (self.iterations, self.restarts)
            self.prototypes.fit(unit(embeddings), self.temperature, *search, epoch.progress)

    def remarks(self, epochs: int, steps: int) -> list[str]:
        if epochs > self.warmup:
            return []
        return [
            f"PCL clusters after {self.warmup} epochs of MoCo, and this run has {epochs}: it is "
            "MoCo alone. Lower --options.warmup, or raise --epochs."
        ]

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) -> the loss of the first against the second, or of both."""
        direction = partial(self.one_direction, indices=views.indices)
        return one_or_both(direction, views, self.symmetric)

    def one_direction(self, view: Tensor, other: Tensor, indices: Tensor) -> Step:
        """The M-step of one direction: against the other view and the queue, and the centroids."""
        (target,) = self.teacher(other)
        query, key = unit(self.student(view).pooled), unit(target.pooled)
        loss_instance = info_nce(*self.queue.similarities(query, key), self.temperature)
        against = self.prototypes.similarities(query, indices, self.negatives)
        losses = [info_nce(*pair, 1.0) for pair in against]  # they are divided by phi already
        loss_proto = torch.stack(losses).mean() * self.prototypes.fitted
        parts = {"loss_instance": loss_instance.detach(), "loss_proto": loss_proto.detach()}
        logs = std_logs(query, key) | parts
        return Step(loss_instance + loss_proto, logs, gather(key))  # ProtoNCE

    def after_step(self, progress: float, keys: Tensor) -> dict[str, float]:
        alpha = self.teacher.follow(self.student, progress)
        self.queue.enqueue(keys)  # after the loss: a view never meets its own key
        return {"teacher_momentum": alpha}


def cluster_counts(images: int, coarsest: int | None) -> list[int]:
    """The number of clusters of each granularity: k, 2 k, 4 k.

    >>> cluster_counts(1_281_167, None)
    [25000, 50000, 100000]
    """
    if images < 2:  # of a network that is evaluated, not trained
        return [1] * GRANULARITIES
    if coarsest is None:
        coarsest = max(2, round(images * FRACTION))
        return [min(images, coarsest << step) for step in range(GRANULARITIES)]
    most = images >> (GRANULARITIES - 1)  # the finest has no more clusters than there are images
    if not 2 <= coarsest <= most:
        raise UserError(
            f"--options.clusters is {coarsest}, but expected 2 to {most:,}, a quarter of the "
            f"{images:,} images."
        )
    return [coarsest << step for step in range(GRANULARITIES)]
