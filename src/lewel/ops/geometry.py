"""Points, boxes and maps in coordinates of views and images, by the recorded crops and flips."""

import torch
import torch.nn.functional as F
from torch import Tensor


def in_image(points: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """Points (B, P, 2) of (x, y) in a view, 0 to 1 -> in coordinates of the image, float64.

    Crops (B, 4) of top, left, height, width in these coordinates, flips (B,).
    """
    corner, extent = _corner_and_extent(boxes)
    return corner + _mirrored(points.double(), flips) * extent


def in_view(points: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """The inverse of `in_image`; points outside of the view are below 0 or above 1."""
    corner, extent = _corner_and_extent(boxes)
    return _mirrored((points.double() - corner) / extent, flips)


def _corner_and_extent(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """(left, top) and (width, height) of crops, (B, 1, 2) each."""
    top, left, height, width = boxes.double().unbind(1)
    return torch.stack([left, top], 1)[:, None], torch.stack([width, height], 1)[:, None]


def _mirrored(points: Tensor, flips: Tensor) -> Tensor:
    """Points (B, P, 2) of views, mirrored where a view is flipped."""
    across = torch.where(flips[:, None], 1 - points[..., 0], points[..., 0])
    return torch.stack([across, points[..., 1]], -1)


def view_coordinates(boxes: Tensor, flips: Tensor, sizes: Tensor, side: int) -> Tensor:
    """The centres of side x side cells of each image, in coordinates (x, y) of its view, 0 to 1.

    boxes (B, 4) of top, left, height, width and sizes (B, 2) of height, width in pixels, flips (B,)
    -> float64 (B, side, side, 2); points outside of the view are below 0 or above 1.
    """
    boxes, sizes = boxes.double(), sizes.double()
    centres = (torch.arange(side, dtype=torch.float64, device=boxes.device) + 0.5) / side
    top, left, height, width = (edge[:, None] for edge in boxes.unbind(1))
    down = (centres * sizes[:, :1] - top) / height  # (B, side)
    across = (centres * sizes[:, 1:] - left) / width
    across = torch.where(flips[:, None], 1 - across, across)
    shape = (len(boxes), side, side)
    return torch.stack([across[:, None, :].expand(shape), down[:, :, None].expand(shape)], -1)


def warp_to_image(
    maps: Tensor, boxes: Tensor, flips: Tensor, sizes: Tensor, side: int
) -> tuple[Tensor, Tensor]:
    """Warp maps (B, K, h, w) of views to image coordinates: (B, K, side, side).

    Returns also which cells lie in the view, bool (B, side, side). Values are interpolated
    bilinearly between the centres of locations, and constant from there to the view's edge.
    """
    points = view_coordinates(boxes, flips, sizes, side)
    shown = ((points >= 0) & (points <= 1)).all(-1)
    grid = (2 * points - 1).to(maps.dtype)
    warped = F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return warped, shown
