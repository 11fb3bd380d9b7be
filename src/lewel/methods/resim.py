"""ReSim: MoCo v2, and InfoNCE of windows that lie in both views.

Xiao et al., Region Similarity Representation Learning, ICCV 2021, in the order of its section 3. In
LEWEL's terms its maps are boxes.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from lewel.errors import UserError
from lewel.losses.info_nce import info_nce, info_nce_of_many
from lewel.methods.base import About, Method, Step, Views, one_or_both, std_logs
from lewel.nn.backbone import Backbone, ResNetBackbone
from lewel.nn.dense_heads import Levels, RegionHead, StagedEncoder
from lewel.nn.heads import HeadSpec
from lewel.nn.norm import shuffle_bn_teacher
from lewel.nn.queue import Queue, QueueSpec
from lewel.nn.teacher import MOCO, TeacherSpec
from lewel.ops.precision import unit
from lewel.ops.ranks import gather, ranks, sum_over_ranks
from lewel.ops.windows import WINDOWS, averaged_windows, in_other_view, region_features, slide


class ReSim(Method):
    """L = L_global + the sum over the levels of L_region.

    Student and teacher have backbone f, MoCo v2's projector and a layer of `region_dim` channels on
    C4 (`levels` c4), or an FPN on C4 and C3 (`levels` fpn).
    """

    about = About(
        name="resim",
        title="ReSim",
        summary="MoCo v2, and the same for windows that lie in both views",
        paper="Xiao et al., Region Similarity Representation Learning, ICCV 2021",
        in_batch=True,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        head: HeadSpec = HeadSpec(dim=128, hidden=2048, norm="none"),
        teacher: TeacherSpec = MOCO,
        contrast: QueueSpec = QueueSpec(),
        levels: Levels = "c4",
        region_dim: int = 256,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, ResNetBackbone):
            raise UserError(
                "--method resim cuts regions from the stages C3 and C4 of a ResNet: choose a "
                "--backbone such as resnet50."
            )
        if region_dim < 1:
            raise UserError(f"--options.region_dim is {region_dim}, but expected 1 or more.")
        self.temperature, self.symmetric = contrast.temperature, contrast.symmetric
        self.student = StagedEncoder(
            backbone, RegionHead(backbone.stage_channels, head, levels, region_dim)
        )
        self.teacher = shuffle_bn_teacher(self.student, teacher, contrast.norm_groups)
        self.queue = Queue(contrast.queue, head.dim)

    def forward(self, views: Views) -> Step:
        """Two views (B, 3, S, S) and where they were cut -> the loss of one direction or both."""
        return one_or_both(partial(self.one_direction, views), (0, 1), self.symmetric)

    def one_direction(self, views: Views, view: int, other: int) -> Step:
        """The loss of the student's view against the teacher's other view."""
        # The other view is flipped as the first, so that a region differs in its scale only.
        apart = (views.flips[view] != views.flips[other])[:, None, None, None]
        (target,) = self.teacher(torch.where(apart, views[other].flip(3), views[other]))
        student = self.student(views[view])
        query, key = unit(student.pooled), unit(target.pooled)
        loss = info_nce(*self.queue.similarities(query, key), self.temperature)  # L_global
        logs = std_logs(query, key) | {"loss_global": loss.detach()}
        places = (views.boxes[view], views.boxes[other]), (views.flips[view],) * 2
        maps = zip(student.features, target.features, strict=True)
        for level, (queries, keys) in enumerate(maps):
            region = self.region_loss(queries, keys, places, *WINDOWS[level])
            logs[f"loss_c{4 - level}"] = region.detach()
            loss = loss + region
        return Step(loss, logs, gather(key))

    def region_loss(
        self,
        queries: Tensor,
        keys: Tensor,
        places: tuple[Sequence[Tensor], Sequence[Tensor]],
        window: float,
        stride: float,
    ) -> Tensor:
        """L_region of one level: maps (B, C, H, W) of both views -> the mean over valid windows.

        A window of the query against the same region of the key, and against the averages over all
        3 x 3 locations of all keys of the global batch. A window not in both views is left out.
        """
        windows = slide(window, stride, queries.device)
        regions, inside = in_other_view(windows, *places)
        query = unit(region_features(queries, windows.expand_as(regions)))  # (B, W, C)
        key = unit(region_features(keys, regions))
        others = gather(unit(averaged_windows(keys)))
        count = sum_over_ranks(inside.sum()).clamp_min(1)
        weights = inside.to(query) * ranks() / count  # the gradient is averaged over ranks
        return info_nce_of_many(query, key, others, self.temperature, weights=weights)  # L_region

    def after_step(self, progress: float, keys: Tensor) -> dict[str, float]:
        alpha = self.teacher.follow(self.student, progress)
        self.queue.enqueue(keys)  # after the loss: a view never meets its own key
        return {"teacher_momentum": alpha}
