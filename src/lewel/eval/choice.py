"""Which of a network's many maps to show: stated rules, the same maps for all images."""

from typing import Literal

import torch
from torch import Tensor

from lewel.eval.where import correlation, evenness, standardised
from lewel.ops.geometry import warp_to_image

Rule = Literal["peaked", "consistent", "different"]
RULES: dict[Rule, str] = {
    "peaked": "the maps of the lowest mean entropy, the most peaked first",
    "consistent": "the maps that agree best between the two views of an image, laid back on it "
    "(mean correlation over what both show), the most consistent first",
    "different": "the most peaked map, then in turn the one least like all chosen before "
    "(the lowest of its highest correlations with them)",
}


def image_side(positions: int) -> int:
    """Cells a side that maps of h positions a side are laid back on: finer, within reason."""
    return max(positions, min(4 * positions, 32))


def agreement(
    maps: list[Tensor], boxes: list[Tensor], flips: list[Tensor], sizes: Tensor, shift: int = 0
) -> Tensor:
    """The correlation of the maps (B, K, h, w) of two views in the image's places, (B, K).

    With a shift the second view is another image's: what agrees then is no answer to the image.
    """
    side = image_side(maps[0].shape[-1])
    one, shown1 = warp_to_image(maps[0], boxes[0], flips[0], sizes, side)
    two, shown2 = warp_to_image(maps[1], boxes[1], flips[1], sizes, side)
    two, shown2 = two.roll(shift, 0), shown2.roll(shift, 0)
    return correlation(one.flatten(2), two.flatten(2), (shown1 & shown2).flatten(1))


def most_peaked(maps: Tensor) -> list[int]:
    """Maps (B, K, N) in the order of their mean entropy, the lowest first."""
    order: list[int] = evenness(maps).mean(0).argsort(stable=True).tolist()
    return order


def most_consistent(agreements: Tensor) -> list[int] | None:
    """Agreements (B, K) -> the order of the maps' means; None where no map has any."""
    means = agreements.nanmean(0)
    if means.isnan().all():
        return None
    order: list[int] = means.nan_to_num(-2.0).argsort(descending=True, stable=True).tolist()
    return order


def most_different(maps: Tensor, n: int) -> list[int]:
    """n of the maps (B, K, N), each as unlike all before it as can be."""
    unit, _ = standardised(maps)
    rows = unit.transpose(0, 1).flatten(1)  # (K, B N): one map over all images
    like = rows @ rows.T / len(maps)
    chosen = most_peaked(maps)[:1]
    while len(chosen) < min(n, len(like)):
        nearest = like[:, chosen].amax(1)
        nearest[torch.tensor(chosen)] = torch.inf
        chosen.append(int(nearest.argmin()))
    return chosen
