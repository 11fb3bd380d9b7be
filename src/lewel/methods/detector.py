"""Learning to detect: Faster R-CNN and Mask R-CNN on a pre-trained backbone (section 4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.image_list import ImageList

from lewel.methods.base import Method, Step
from lewel.methods.rcnn import Counts, Proposals, Regions, Sizes, Target
from lewel.nn.backbone import Backbone
from lewel.nn.pyramid import C4, Fpn, stage_channels
from lewel.nn.rcnn import RATIOS, Anchors, Masks, Predictor, ProposalHead, RoIPool


@dataclass(frozen=True)
class Settings:
    """What both detectors take; the defaults are the protocol's (detectron2's)."""

    rois: int = 512  # regions an image that the second stage learns from
    anchors: int = 256  # anchors an image that the first stage learns from
    proposals: Counts | None = None
    score: float = 0.05  # below it nothing is detected
    detections: int = 100  # of an image
    aligned: bool = True  # RoIAlign without the half-pixel shift
    samples: int = 0  # of RoIAlign in each bin; 0 adapts to the region
    beta: float = 0.0  # where L1 turns smooth; 0 is plain L1

    def first_stage(self, body: C4 | Fpn, sizes: list[list[int]], usual: Counts) -> Proposals:
        """Proposals from all maps of a body, with anchors of these sizes on each."""
        head = ProposalHead(body.channels, len(sizes[0]) * len(RATIOS))
        anchors = Anchors(sizes, body.strides)
        return Proposals(anchors, head, self.anchors, self.proposals or usual, self.beta)

    def pool(self, size: int, strides: Sequence[int]) -> RoIPool:
        """Regions of so many positions a side."""
        return RoIPool(size, strides, aligned=self.aligned, samples=self.samples)

    def second_stage(
        self, pool: RoIPool, head: nn.Module, predictor: Predictor, masks: Masks | None
    ) -> Regions:
        """Regions that are pooled, run through a head and named."""
        return Regions(
            pool,
            head,
            predictor,
            masks,
            drawn=self.rois,
            score=self.score,
            detections=self.detections,
            beta=self.beta,
        )


class Detector(Method):
    """A body that gives maps, proposals on them, and what the proposed regions hold."""

    def __init__(self, body: C4 | Fpn, proposals: Proposals, regions: Regions) -> None:
        super().__init__()
        self.body, self.proposals, self.regions = body, proposals, regions

    def forward(  # type: ignore[override]
        self, images: Tensor, sizes: Sizes, targets: list[Target]
    ) -> Step:
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
    """One map of stride s, anchors of 2 s to 32 s, and the fourth stage as the head of regions.

    A batch norm follows the fourth stage, with no ReLU after it; `classes` leaves out nothing.
    """
    body = C4(backbone)
    (stride,) = body.strides
    first = settings.first_stage(
        body, [[2 * stride * 2**n for n in range(5)]], (12000, 2000, 6000, 1000)
    )
    stage: nn.Sequential = backbone.net.layer4  # type: ignore[assignment]
    channels = stage_channels(stage)
    head = nn.Sequential(stage, nn.BatchNorm2d(channels))
    predictor = Predictor(channels, 1 + classes)
    branch = Masks(None, channels, width, 1 + classes, layers=0) if masks else None
    pool = settings.pool(14, body.strides)
    return Detector(body, first, settings.second_stage(pool, head, predictor, branch))


def fpn_detector(
    backbone: Backbone, classes: int, masks: bool, width: int, hidden: int, settings: Settings
) -> Detector:
    """A pyramid with anchors of 8 strides on each map, and two linear layers on each region."""
    body = Fpn(backbone, width)
    first = settings.first_stage(
        body, [[8 * stride] for stride in body.strides], (2000, 1000, 1000, 1000)
    )
    strides = body.strides[:-1]  # the coarsest map is for proposals alone
    head = TwoMLPHead(width * 7 * 7, hidden)
    for layer in (head.fc6, head.fc7):
        nn.init.kaiming_uniform_(layer.weight, a=1)
        nn.init.zeros_(layer.bias)
    predictor = Predictor(hidden, 1 + classes)
    finer = settings.pool(14, strides)
    branch = Masks(finer, width, width, 1 + classes, layers=4) if masks else None
    pool = settings.pool(7, strides)
    return Detector(body, first, settings.second_stage(pool, head, predictor, branch))
