"""Windows slid over a view, the same regions in another view, and their features."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

from lewel.ops.geometry import in_image, in_view
from lewel.ops.precision import precise

# ReSim's windows on C4 and on C3: side and stride as fractions of the view, of its 224 pixels.
WINDOWS = ((48 / 224, 32 / 224), (32 / 224, 24 / 224))
SAMPLES = 2  # of RoIAlign, in each direction
AVERAGED = 3  # locations of a negative, in each direction
EDGE = 1e-6  # rounding of coordinates from 0 to 1


def slide(window: float, stride: float, device: torch.device | None = None) -> Tensor:
    """All windows that fit into a view: (W, 4) of left, top, right, bottom, 0 to 1, row by row.

    >>> slide(0.5, 0.25)[:, 0].tolist()
    [0.0, 0.25, 0.5, 0.0, 0.25, 0.5, 0.0, 0.25, 0.5]
    """
    many = int((1 - window) / stride + EDGE) + 1
    start = torch.arange(many, dtype=torch.float64, device=device) * stride
    top, left = torch.meshgrid(start, start, indexing="ij")
    corner = torch.stack([left, top], -1).flatten(0, 1)
    return torch.cat([corner, corner + window], 1)


@torch.no_grad()
def in_other_view(
    windows: Tensor, boxes: Sequence[Tensor], flips: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Windows (W, 4) of one view in another view of the same image, and whether they lie in it.

    Crops (B, 4) and flips (B,) of both views -> regions float64 (B, W, 4), bool (B, W).
    """
    corners = windows.view(1, -1, 2).expand(len(boxes[0]), -1, -1)
    points = in_view(in_image(corners, boxes[0], flips[0]), boxes[1], flips[1])
    pair = points.view(len(points), -1, 2, 2)  # (B, W, 2, 2)
    regions = torch.cat([pair.amin(2), pair.amax(2)], -1)  # a flip exchanges left and right
    inside = ((regions >= -EDGE) & (regions <= 1 + EDGE)).all(-1)
    return regions, inside


def region_features(features: Tensor, regions: Tensor) -> Tensor:
    """The mean feature of each region: (B, C, h, w), (B, W, 4) of 0 to 1 -> (B, W, C).

    RoIAlign: the mean of 2 x 2 values, interpolated bilinearly between the centres of locations.
    """
    features = precise(features)
    batch, many = regions.shape[:2]
    height, width = features.shape[-2:]
    left, top, right, bottom = regions.flatten(0, 1).unbind(1)
    numbers = torch.arange(batch, device=regions.device).repeat_interleave(many)
    sides = (left * width, top * height, right * width, bottom * height)
    rois = torch.stack([numbers.to(regions), *sides], 1)
    pooled: Tensor = roi_align(features, rois.to(features), 1, 1.0, SAMPLES, aligned=True)
    return pooled.view(batch, many, -1)


def averaged_windows(features: Tensor) -> Tensor:
    """The means over all 3 x 3 neighbouring locations: (B, C, h, w) -> (B, (h - 2) (w - 2), C)."""
    features = precise(features)
    kernel = min(AVERAGED, *features.shape[-2:])
    return F.avg_pool2d(features, kernel, 1).flatten(2).transpose(1, 2)
