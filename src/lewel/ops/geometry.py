"""Where a view lies in its image: from recorded crops and flips back to the image's own places."""

import torch
import torch.nn.functional as F
from torch import Tensor


def places_in_view(boxes: Tensor, flips: Tensor, sizes: Tensor, side: int) -> Tensor:
    """The centres of side x side cells of each image, as places (x, y) in its view, 0 to 1.

    boxes (B, 4) of top, left, height, width and sizes (B, 2) of height, width in pixels, flips (B,)
    -> float64 (B, side, side, 2); what the view does not show lies outside of 0 to 1.
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
    """Maps (B, K, h, w) of views, laid back on their images: (B, K, side, side).

    Beside them which cells the view shows, bool (B, side, side). Values between the centres of
    positions are interpolated, those between a centre and the view's edge are the position's own.
    """
    places = places_in_view(boxes, flips, sizes, side)
    shown = ((places >= 0) & (places <= 1)).all(-1)
    grid = (2 * places - 1).to(maps.dtype)
    warped = F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return warped, shown
