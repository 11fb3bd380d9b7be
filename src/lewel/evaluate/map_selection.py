"""Rules that select which maps of a network to show, the same maps for all images."""

from typing import Literal

import torch
from torch import Tensor

from lewel.evaluate.where import correlation, normalised_entropy, standardised
from lewel.ops.geometry import warp_to_image

Rule = Literal["peaked", "consistent", "different"]
RULES: dict[Rule, str] = {
    "peaked": "the maps of the lowest mean entropy, the most peaked first",
    "consistent": "the maps that agree best between the two views of an image, in image "
    "coordinates (mean correlation where the views overlap), the most consistent first",
    "different": "the most peaked map, then in turn the one least correlated with those before "
    "(the lowest maximum of its correlations with them)",
}


def image_side(locations: int) -> int:
    """Cells per side of the grid in image coordinates, for maps of h locations per side."""
    return max(locations, min(4 * locations, 32))


def agreement(
    maps: list[Tensor], boxes: list[Tensor], flips: list[Tensor], sizes: Tensor, shift: int = 0
) -> Tensor:
    """The correlation of the maps (B, K, h, w) of two views in image coordinates, (B, K).

    With a shift the second view is of another image: agreement then does not depend on content.
    """
    side = image_side(maps[0].shape[-1])
    one, shown1 = warp_to_image(maps[0], boxes[0], flips[0], sizes, side)
    two, shown2 = warp_to_image(maps[1], boxes[1], flips[1], sizes, side)
    two, shown2 = two.roll(shift, 0), shown2.roll(shift, 0)
    return correlation(one.flatten(2), two.flatten(2), (shown1 & shown2).flatten(1))


def most_peaked(maps: Tensor) -> list[int]:
    """Maps (B, K, N) by their mean entropy, the lowest first."""
    order: list[int] = normalised_entropy(maps).mean(0).argsort(stable=True).tolist()
    return order


def most_consistent(agreements: Tensor) -> list[int] | None:
    """Agreements (B, K) -> the maps by their mean, the highest first; None if all are NaN."""
    means = agreements.nanmean(0)
    if means.isnan().all():
        return None
    order: list[int] = means.nan_to_num(-2.0).argsort(descending=True, stable=True).tolist()
    return order


def most_different(maps: Tensor, n: int) -> list[int]:
    """n of the maps (B, K, N), each as little correlated with those before as possible."""
    unit, _ = standardised(maps)
    rows = unit.transpose(0, 1).flatten(1)  # (K, B N): one map over all images
    correlations = rows @ rows.T / len(maps)
    chosen = most_peaked(maps)[:1]
    while len(chosen) < min(n, len(correlations)):
        nearest = correlations[:, chosen].amax(1)
        nearest[torch.tensor(chosen)] = torch.inf
        chosen.append(int(nearest.argmin()))
    return chosen
