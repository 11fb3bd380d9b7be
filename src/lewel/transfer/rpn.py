"""The region proposal network (RPN): torchvision's, with detectron2's losses."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

from lewel.ops.precision import precise

RATIOS = (0.5, 1.0, 2.0)  # aspect ratios (height / width) of anchors
Counts = tuple[int, int, int, int]  # proposals before and after NMS: training, then testing


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """Anchors at the network's strides, independent of the padding of images."""

    def __init__(self, sizes: Sequence[Sequence[int]], strides: Sequence[int]) -> None:
        super().__init__(tuple(map(tuple, sizes)), (RATIOS,) * len(sizes))
        self.strides = tuple(strides)

    def forward(self, images: ImageList, maps: list[Tensor]) -> list[Tensor]:
        """For each image the anchors (A, 4) of all maps, one after the other."""
        device = maps[0].device
        self.set_cell_anchors(torch.float32, device)
        steps = [[torch.tensor(stride, device=device)] * 2 for stride in self.strides]
        anchors = torch.cat(self.grid_anchors([list(one.shape[-2:]) for one in maps], steps))
        return [anchors for _ in images.image_sizes]


class ProposalHead(RPNHead):  # type: ignore[misc]
    """torchvision's RPN head with float32 outputs under autocast."""

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, deltas = super().forward(maps)
        return [precise(one) for one in scores], [precise(one) for one in deltas]


class RPN(RegionProposalNetwork):  # type: ignore[misc]
    """torchvision's RPN with smooth L1 of a given beta as box loss."""

    def __init__(
        self, anchors: Anchors, head: ProposalHead, drawn: int, counts: Counts, beta: float
    ) -> None:
        before, after, before_test, after_test = counts
        super().__init__(
            anchors,
            head,
            0.7,
            0.3,
            drawn,
            0.5,
            {"training": before, "testing": before_test},
            {"training": after, "testing": after_test},
            0.7,
        )
        self.beta = beta

    def compute_loss(
        self, objectness: Tensor, deltas: Tensor, labels: list[Tensor], targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Objectness (A, 1), deltas (A, 4), labels and target deltas of all anchors -> losses."""
        positive, negative = (torch.where(torch.cat(one))[0] for one in self.fg_bg_sampler(labels))
        drawn, target = torch.cat([positive, negative]), torch.cat(targets)
        boxes = F.smooth_l1_loss(
            deltas[positive], target[positive], beta=self.beta, reduction="sum"
        )
        objects = F.binary_cross_entropy_with_logits(
            objectness.flatten()[drawn], torch.cat(labels)[drawn]
        )
        return objects, boxes / drawn.numel()
