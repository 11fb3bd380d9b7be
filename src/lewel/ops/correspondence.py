"""Which locations of two views belong together: by their features, or by their place."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lewel.ops.geometry import in_image
from lewel.ops.precision import unit

DISTANCE = 0.7  # PixPro's, of the centres of a pair in diagonals of a location


@torch.no_grad()
def most_similar(one: Tensor, two: Tensor) -> Tensor:
    """For each location of a view the location of the other whose features are most similar.

    Features (B, N, C), (B, M, C) -> indices (B, N), by cosine similarity.
    """
    with torch.autocast(one.device.type, enabled=False):
        return (unit(one) @ unit(two).mT).argmax(-1)


def at_locations(values: Tensor, chosen: Tensor) -> Tensor:
    """Values (B, M, C) at the chosen locations (B, N): aggregation by one-hot maps, (B, N, C)."""
    return values.gather(1, chosen[..., None].expand(-1, -1, values.shape[-1]))


@torch.no_grad()
def pairs_by_place(
    boxes: Sequence[Tensor], flips: Sequence[Tensor], side: int, threshold: float
) -> Tensor:
    """Which locations of two views lie close together in the image: bool (B, N, N).

    Views of side x side locations with crops (B, 4) of top, left, height, width and flips (B,).
    Two locations are a pair where their centres are closer than the threshold times the diagonal
    of a location, of the view whose locations are larger. Distances are in the crops' units.
    """
    centres = [location_centres(box, flip, side) for box, flip in zip(boxes, flips, strict=True)]
    apart = (centres[0][:, :, None] - centres[1][:, None]).square().sum(-1).sqrt()  # (B, N, N)
    diagonals = [(box[:, 2:].double() / side).square().sum(1).sqrt() for box in boxes]
    return apart < threshold * torch.maximum(*diagonals)[:, None, None]


def location_centres(boxes: Tensor, flips: Tensor, side: int) -> Tensor:
    """The centres (x, y) of a view's locations in the image, row by row: (B, N, 2)."""
    centre = (torch.arange(side, dtype=torch.float64, device=boxes.device) + 0.5) / side
    down, across = torch.meshgrid(centre, centre, indexing="ij")
    points = torch.stack([across, down], -1).flatten(0, 1)  # (N, 2)
    return in_image(points.expand(len(boxes), -1, -1), boxes, flips)
