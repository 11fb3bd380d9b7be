"""Faster R-CNN and Mask R-CNN on a pre-trained backbone (section 4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.image_list import ImageList

from lewel.nn.backbone import Backbone
from lewel.nn.trainable import Step, Trainable
from lewel.transfer.fpn import C4, Fpn, stage_channels
from lewel.transfer.roi import BoxPredictor, MaskHead, RoIPool, RoIs, Sizes, Target
from lewel.transfer.rpn import RATIOS, RPN, Anchors, Counts, ProposalHead


@dataclass(frozen=True)
class Settings:
    """Settings of both detectors; the defaults are detectron2's."""

    rois: int = 512  # per image, sampled to train the second stage
    anchors: int = 256  # per image, sampled to train the RPN
    proposals: Counts | None = None
    score: float = 0.05  # the least score of a detection
    detections: int = 100  # per image, at most
    aligned: bool = True  # RoIAlign without the half-pixel shift
    samples: int = 0  # of RoIAlign per bin; 0 adapts to the RoI's size
    beta: float = 0.0  # of smooth L1; 0 is L1

    def first_stage(self, body: C4 | Fpn, sizes: list[list[int]], usual: Counts) -> RPN:
        """The RPN on all feature maps of a body, with anchors of these sizes on each."""
        head = ProposalHead(body.channels, len(sizes[0]) * len(RATIOS))
        anchors = Anchors(sizes, body.strides)
        return RPN(anchors, head, self.anchors, self.proposals or usual, self.beta)

    def pool(self, size: int, strides: Sequence[int]) -> RoIPool:
        """RoIAlign to size x size bins."""
        return RoIPool(size, strides, aligned=self.aligned, samples=self.samples)

    def second_stage(
        self, pool: RoIPool, head: nn.Module, predictor: BoxPredictor, masks: MaskHead | None
    ) -> RoIs:
        """The RoI heads: pooling, box head, box predictor and mask head."""
        return RoIs(
            pool,
            head,
            predictor,
            masks,
            drawn=self.rois,
            score=self.score,
            detections=self.detections,
            beta=self.beta,
        )


class Detector(Trainable):
    """A body that gives feature maps, the RPN on them, and the RoI heads."""

    def __init__(self, body: C4 | Fpn, rpn: RPN, rois: RoIs) -> None:
        super().__init__()
        self.body, self.proposals, self.regions = body, rpn, rois

    def forward(self, images: Tensor, sizes: Sizes, targets: list[Target]) -> Step:
        """Padded images (B, 3, H, W) and their objects -> the sum of all losses."""
        maps = self.body(images)
        proposals, first = self.proposals(ImageList(images, sizes), maps, targets)
        _, second = self.regions(maps, proposals, sizes, targets)
        losses = {**first, **second}
        total = torch.stack(list(losses.values())).sum()
        return Step(total, {name: loss.detach() for name, loss in losses.items()})

    def detect(self, images: Tensor, sizes: Sizes) -> list[Target]:
        """Padded images (B, 3, H, W) -> boxes, labels, scores (and masks) of each; in eval mode."""
        maps = self.body(images)
        proposals, _ = self.proposals(ImageList(images, sizes), maps)
        found: list[Target] = self.regions(maps, proposals, sizes)[0]
        return found


def c4_detector(
    backbone: Backbone, classes: int, masks: bool, width: int, settings: Settings
) -> Detector:
    """R-CNN on C4: one map of stride s, anchors of 2 s to 32 s, the fourth stage as box head.

    A batch norm follows the fourth stage, without a ReLU; `classes` excludes the background.
    """
    body = C4(backbone)
    (stride,) = body.strides
    first = settings.first_stage(
        body, [[2 * stride * 2**n for n in range(5)]], (12000, 2000, 6000, 1000)
    )
    stage: nn.Sequential = backbone.net.layer4  # type: ignore[assignment]
    channels = stage_channels(stage)
    head = nn.Sequential(stage, nn.BatchNorm2d(channels))
    predictor = BoxPredictor(channels, 1 + classes)
    branch = MaskHead(None, channels, width, 1 + classes, layers=0) if masks else None
    pool = settings.pool(14, body.strides)
    return Detector(body, first, settings.second_stage(pool, head, predictor, branch))


def fpn_detector(
    backbone: Backbone, classes: int, masks: bool, width: int, hidden: int, settings: Settings
) -> Detector:
    """R-CNN on an FPN: anchors of 8 strides on each map, two linear layers as box head."""
    body = Fpn(backbone, width)
    first = settings.first_stage(
        body, [[8 * stride] for stride in body.strides], (2000, 1000, 1000, 1000)
    )
    strides = body.strides[:-1]  # the coarsest map is for the RPN only
    head = TwoMLPHead(width * 7 * 7, hidden)
    for layer in (head.fc6, head.fc7):
        nn.init.kaiming_uniform_(layer.weight, a=1)
        nn.init.zeros_(layer.bias)
    predictor = BoxPredictor(hidden, 1 + classes)
    finer = settings.pool(14, strides)
    branch = MaskHead(finer, width, width, 1 + classes, layers=4) if masks else None
    pool = settings.pool(7, strides)
    return Detector(body, first, settings.second_stage(pool, head, predictor, branch))
