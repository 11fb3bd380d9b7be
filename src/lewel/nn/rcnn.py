"""The parts of Faster and Mask R-CNN that differ from torchvision's, on top of torchvision's."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import roi_align
from torchvision.ops.poolers import LevelMapper

from lewel.ops.precision import precise

RATIOS = (0.5, 1.0, 2.0)  # height over width of anchors


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """Anchors at the network's own strides, whatever the images were padded to."""

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
    """torchvision's head, whose boxes are never rounded to 16 bits."""

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, deltas = super().forward(maps)
        return [precise(one) for one in scores], [precise(one) for one in deltas]


class RoIPool(nn.Module):
    """RoIAlign from the map whose stride fits a region best: boxes -> (R, C, S, S)."""

    def __init__(self, size: int, strides: Sequence[int], *, aligned: bool, samples: int) -> None:
        super().__init__()
        self.size, self.strides = size, tuple(strides)
        self.aligned, self.samples = aligned, samples  # 0 samples: as many as a region has pixels
        levels = [stride.bit_length() - 1 for stride in self.strides]
        self.level = LevelMapper(min(levels), max(levels))

    def forward(self, maps: dict[str, Tensor], boxes: list[Tensor]) -> Tensor:
        rows = torch.cat(
            [
                torch.cat([torch.full_like(mine[:, :1], image), mine], 1)
                for image, mine in enumerate(boxes)
            ]
        )
        seen = list(maps.values())[: len(self.strides)]
        if len(seen) == 1:
            return self.pool(seen[0], rows, self.strides[0])
        levels = self.level(boxes)
        parts = [torch.where(levels == level)[0] for level in range(len(seen))]
        pooled = [
            self.pool(one, rows[part], stride)
            for one, part, stride in zip(seen, parts, self.strides, strict=True)
        ]
        return torch.cat(pooled)[torch.cat(parts).argsort()]

    def pool(self, features: Tensor, rows: Tensor, stride: int) -> Tensor:
        size = (self.size, self.size)
        out: Tensor = roi_align(features, rows, size, 1 / stride, self.samples, self.aligned)
        return out


class Predictor(nn.Module):
    """Regions (R, C, S, S) or (R, C) -> scores (R, K) and deltas (R, 4 K); class 0 is nothing."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(channels, classes)
        self.bbox_pred = nn.Linear(channels, 4 * classes)
        for layer, deviation in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        if regions.ndim == 4:
            regions = regions.mean((2, 3))
        return precise(self.cls_score(regions)), precise(self.bbox_pred(regions))


class Masks(nn.Module):
    """The mask branch: on regions of its own (FPN), or on the box head's where pool is None."""

    def __init__(
        self, pool: RoIPool | None, channels: int, width: int, classes: int, layers: int
    ) -> None:
        super().__init__()
        self.pool = pool
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        parts += [nn.ConvTranspose2d(channels, width, 2, 2), nn.ReLU(inplace=True)]
        parts.append(nn.Conv2d(width, classes, 1))
        self.layers = nn.Sequential(*parts)
        for layer in parts:
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        nn.init.normal_(self.layers[-1].weight, std=0.001)  # type: ignore[arg-type]

    def forward(self, regions: Tensor) -> Tensor:
        """Regions (R, C, S, S) -> logits (R, K, 2 S, 2 S)."""
        return precise(self.layers(regions))
