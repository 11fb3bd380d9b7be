"""PixPro: locations of two views that show the same place of the image get the same embedding.

Xie et al., Propagate Yourself, CVPR 2021, in the order of its section 3.2. In LEWEL's terms its
maps are one-hot, by place.
"""

import math

from torch import Tensor

from lewel.errors import UserError
from lewel.losses.cosine import normalised_mse, paired_cosine
from lewel.methods.base import About, Method, Step, Views, std_logs
from lewel.nn.backbone import Backbone
from lewel.nn.dense_heads import LocationHead, Propagation
from lewel.nn.heads import Embeddings, Encoder, HeadSpec
from lewel.nn.teacher import Teacher, TeacherSpec
from lewel.ops.correspondence import DISTANCE, pairs_by_place


class PixPro(Method):
    """The student has backbone f, a projector of locations and the propagation; no negatives.

    `distance` is how far apart the centres of a pair may lie, in diagonals of a location, and
    `sharpness` the exponent gamma of the similarity. `instance_weight` adds BYOL's loss of the
    pooled features, with a projector and a predictor of its own.
    """

    about = About(
        name="pixpro",
        title="PixPro",
        summary="predict the teacher's embedding of the same place in the other view",
        paper="Xie et al., Propagate Yourself, CVPR 2021",
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: HeadSpec = HeadSpec(),
        teacher: TeacherSpec = TeacherSpec("ema", 0.99, "cosine"),
        distance: float = DISTANCE,
        sharpness: float = 2.0,
        instance_weight: float = 0.0,
    ) -> None:
        super().__init__()
        for name, value in (("distance", distance), ("sharpness", sharpness)):
            if not 0 < value < math.inf:
                raise UserError(f"--options.{name} is {value}, but expected a number above 0.")
        if not 0 <= instance_weight < math.inf:
            raise UserError(
                f"--options.instance_weight is {instance_weight}, but expected a number from 0 on."
            )
        self.distance, self.instance_weight = distance, instance_weight
        self.student = Encoder(backbone, LocationHead(backbone.channels, head, instance_weight > 0))
        self.teacher = Teacher(self.student, teacher)
        self.propagate = Propagation(head.dim, sharpness)  # y_i, by the similarities s
        if instance_weight > 0:
            self.predict = head.mlp(head.dim, head.dim)

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) and where they were cut -> the loss in both directions, summed."""
        target1, target2 = self.teacher(*views)
        one, two = (self.student(view) for view in views)
        pairs = self.pairs(views, one)
        loss = self.pixel_loss(one, target2, pairs) + self.pixel_loss(two, target1, pairs.mT)
        logs = {"loss_pixel": loss.detach(), "pairs": pairs.sum((1, 2)).float().mean()}
        logs |= std_logs(one.pooled, target1.pooled)
        if self.instance_weight > 0:
            instance = self.instance_loss(one, target2) + self.instance_loss(two, target1)
            logs["loss_instance"] = instance.detach()
            loss = loss + self.instance_weight * instance  # L = L_PixPro + alpha L_inst
        return Step(loss, logs)

    def pairs(self, views: Views, embeddings: Embeddings) -> Tensor:
        """A(i, j): which locations of the two views are close in the image, bool (B, N, N)."""
        assert embeddings.aligned is not None
        side = math.isqrt(embeddings.aligned.shape[1])
        return pairs_by_place(views.boxes, views.flips, side, self.distance)  # A(i, j)

    def pixel_loss(self, view: Embeddings, target: Embeddings, pairs: Tensor) -> Tensor:
        """L_PixPro of one direction: -2 cos(y_i, x'_j), the mean over an image's pairs."""
        assert view.aligned is not None and target.aligned is not None
        return paired_cosine(self.propagate(view.aligned), target.aligned, pairs)  # L_PixPro

    def instance_loss(self, view: Embeddings, target: Embeddings) -> Tensor:
        """BYOL's loss of the pooled embeddings."""
        return normalised_mse(self.predict(view.pooled), target.pooled)

    def after_step(self, progress: float, keys: None) -> dict[str, float]:
        return {"teacher_momentum": self.teacher.follow(self.student, progress)}
