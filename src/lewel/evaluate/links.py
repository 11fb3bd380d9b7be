"""What a method takes to be the same in two views of an image: its own maps, as coloured regions.

DenseCL: the location of the other view whose features are most alike. PixPro: locations at the same
place. ReSim: windows that lie in both views. SwAV: the prototype most active at each location.
"""

import colorsys
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lewel.evaluate.maps import prototypes_of
from lewel.nn.dense_heads import DenseHead, LocationHead, RegionHead
from lewel.nn.heads import Encoder, GlobalHead
from lewel.ops.correspondence import DISTANCE, most_similar, pairs_by_place
from lewel.ops.windows import WINDOWS, in_other_view, slide

CORNERS = ((0.1, 0.3, 0.9), (0.9, 0.15, 0.15), (0.1, 0.75, 0.3), (0.95, 0.85, 0.1))
TURN = (math.sqrt(5) - 1) / 2  # of the colour circle, between prototypes of successive numbers


class Regions(NamedTuple):
    """Coloured regions of one view."""

    boxes: Tensor  # (P, 4): left, top, right, bottom, 0 to 1
    colours: Tensor  # (P, 3) of 0 to 1


class Links(NamedTuple):
    """Regions of two views of an image: those of one colour belong together."""

    one: Regions
    two: Regions
    filled: bool  # or outlined


def link_note(head: nn.Module) -> str | None:
    """What the colours of two views show; None for methods that link no regions."""
    if isinstance(head, DenseHead):
        return (
            "View 1 is coloured by place, and every location of view 2 as the location of view 1 "
            "whose features are most similar: DenseCL's correspondence."
        )
    if isinstance(head, LocationHead):
        return (
            "Locations that are close in the image have one colour: PixPro's pairs, which follow "
            "from the crops alone. Grey locations have no pair."
        )
    if isinstance(head, RegionHead):
        return (
            "Windows that lie in both views have one colour: ReSim's regions, which follow from "
            "the crops alone."
        )
    if prototypes_of(head) is not None:
        return "Each location has the colour of its most active prototype: SwAV's assignment."
    return None


@torch.no_grad()
def links_of(
    encoder: Encoder,
    views: Sequence[Tensor],
    boxes: Sequence[Tensor],
    flips: Sequence[Tensor],
    distance: float = DISTANCE,
) -> list[Links] | None:
    """The links of each image between two views (B, 3, S, S); None where a method has none.

    Crops (B, 4) of top, left, height, width in any unit, flips (B,); `distance` of PixPro's pairs.
    """
    head = encoder.head
    if isinstance(head, RegionHead):
        return _windows(boxes, flips)
    if link_note(head) is None:
        return None
    tokens = [encoder.backbone(view).cpu() for view in views]
    side = math.isqrt(tokens[0].shape[1])
    if isinstance(head, DenseHead):
        colours = place_colours(side)
        return [
            Links(grid_regions(colours), grid_regions(colours[back]), filled=True)
            for back in most_similar(tokens[1], tokens[0])
        ]
    if isinstance(head, LocationHead):
        return [_places(pairs, side) for pairs in pairs_by_place(boxes, flips, side, distance)]
    return _assignments(head, [one.to(views[0].device) for one in tokens])


def place_colours(side: int) -> Tensor:
    """A colour for each of side x side locations that changes smoothly with its place: (N, 3)."""
    centre = (torch.arange(side) + 0.5) / side
    down, across = torch.meshgrid(centre, centre, indexing="ij")
    return blend(across.flatten(), down.flatten())


def blend(across: Tensor, down: Tensor) -> Tensor:
    """The colours (P, 3) at places (P,) of 0 to 1, between those of the four corners."""
    x, y = across[:, None].float(), down[:, None].float()
    left, right, lower_left, lower_right = torch.tensor(CORNERS).unbind()
    upper = left + (right - left) * x
    return torch.lerp(upper, lower_left + (lower_right - lower_left) * x, y)


def grid_regions(colours: Tensor) -> Regions:
    """Each location of a square grid as a region, with its colour (N, 3)."""
    side = math.isqrt(len(colours))
    return Regions(slide(1 / side, 1 / side).float(), colours)


def _places(pairs: Tensor, side: int) -> Links:
    """Pairs of locations, bool (N, N), in the colours of the first view's places."""
    colours = place_colours(side)
    weights = pairs.float()
    back = weights.T @ colours / weights.sum(0).clamp_min(1)[:, None]
    ends = []
    for one, has in ((colours, pairs.any(1)), (back, pairs.any(0))):
        regions = grid_regions(one)
        ends.append(Regions(regions.boxes[has], regions.colours[has]))
    return Links(ends[0], ends[1], filled=True)


def _windows(boxes: Sequence[Tensor], flips: Sequence[Tensor]) -> list[Links]:
    """ReSim's windows of the first view, and where they lie in the second."""
    windows = slide(*WINDOWS[0])
    colours = blend((windows[:, 0] + windows[:, 2]) / 2, (windows[:, 1] + windows[:, 3]) / 2)
    out = []
    for regions, inside in zip(*in_other_view(windows, boxes, flips), strict=True):
        one = Regions(windows[inside].float(), colours[inside])
        out.append(Links(one, Regions(regions[inside].float(), colours[inside]), filled=False))
    return out


def _assignments(head: nn.Module, tokens: list[Tensor]) -> list[Links]:
    """The most active prototype of each location, in a colour of its own."""
    prototypes = prototypes_of(head)
    assert prototypes is not None and isinstance(head, GlobalHead)
    views = []
    for one in tokens:
        best = prototypes(head.project(one)).argmax(-1).cpu()  # (B, N)
        views.append([grid_regions(_numbered(row)) for row in best])
    return [Links(one, two, filled=True) for one, two in zip(*views, strict=True)]


def _numbered(numbers: Tensor) -> Tensor:
    """A colour for each number (N,): (N, 3)."""
    return torch.tensor([colorsys.hsv_to_rgb(n * TURN % 1, 0.85, 0.95) for n in numbers.tolist()])
