"""Metrics of alignment maps: pure functions of maps (B, K, N) that each sum to 1.

The image is divided into h x w cells as the maps are. `inside` (B, N) is the fraction of each cell
that is object, `known` (B, N) the fraction that is not ignored.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lewel.ops.correspondence import DISTANCE, most_similar, pairs_by_place
from lewel.ops.randomness import generator

LEAST_CELLS = 16  # of an overlap; a correlation over fewer is NaN
FLAT = 1e-6  # a map that varies by less than this fraction of its mean counts as constant
RESAMPLES = 1000


def correlation(one: Tensor, two: Tensor, shared: Tensor, least: int = LEAST_CELLS) -> Tensor:
    """The correlation of two maps (B, K, G) over the cells they share, bool (B, G) -> (B, K).

    NaN where they share fewer than `least` cells, or where either is constant there.
    """
    count = shared.sum(1).double()[:, None]
    weight = shared[:, None].double()
    one, two = one.double(), two.double()
    centred, norms, flat = [], [], []
    for maps in (one, two):
        mean = (maps * weight).sum(2, keepdim=True) / count[..., None]
        difference = (maps - mean) * weight
        norm = difference.square().sum(2).sqrt()
        centred.append(difference)
        norms.append(norm)
        flat.append(norm <= FLAT * mean[..., 0].abs() * count.sqrt())
    out = (centred[0] * centred[1]).sum(2) / (norms[0] * norms[1])
    return out.masked_fill(flat[0] | flat[1] | (count < least), torch.nan)


def pointing(maps: Tensor, inside: Tensor, known: Tensor) -> Tensor:
    """Pointing-game accuracy: whether the maximum of each map lies on the object, (B, K).

    The maximum is a whole cell, or several that tie, and counts by the fraction of their known
    area that is object: the expectation for a random point in them.
    """
    highest = _where_known(maps, known)
    best = (highest == highest.amax(2, keepdim=True)).double()
    return (best @ inside.double()[..., None] / (best @ known.double()[..., None]))[..., 0]


def cut_iou(maps: Tensor, inside: Tensor, known: Tensor) -> Tensor:
    """IoU of the object with each map thresholded to the object's area, (B, K).

    Of cells that tie, and of the last cell, only a part is taken: its overlap with the object is
    the expectation over random points.
    """
    order = _where_known(maps, known).sort(dim=2, descending=True)
    falling = -order.values
    wide = order.indices
    rooms = known.double()[:, None].expand(maps.shape).gather(2, wide)
    objects = inside.double()[:, None].expand(maps.shape).gather(2, wide)
    before = torch.cat([rooms.new_zeros(*rooms.shape[:2], 1), rooms.cumsum(2)], 2)
    falling = falling.contiguous()
    above = before.gather(2, torch.searchsorted(falling, falling))
    tied = before.gather(2, torch.searchsorted(falling, falling, right=True)) - above
    area = inside.double().sum(1)[:, None, None]
    taken = ((area - above) / tied.clamp_min(1e-12)).clamp(0, 1)
    shared = (taken * objects).sum(2)
    return shared / (2 * area[..., 0] - shared)


def matching(
    features: Sequence[Tensor] | None, boxes: Sequence[Tensor], flips: Sequence[Tensor], side: int
) -> Tensor:
    """How many locations of a view are most similar to one at the same place of the other: (B,).

    Features (B, N, C) of two views, or None for the expectation of a random choice; crops (B, 4) of
    top, left, height, width and flips (B,). The same place is a pair of PixPro's; locations without
    a pair are left out. NaN where there is no pair.
    """
    pairs = pairs_by_place(boxes, flips, side, DISTANCE)  # (B, N, N)
    if features is None:
        right = pairs.double().mean(2)
    else:
        right = pairs.gather(2, most_similar(*features)[..., None])[..., 0].double()
    paired = pairs.any(2)
    return (right * paired).sum(1) / paired.sum(1)


def _where_known(maps: Tensor, known: Tensor) -> Tensor:
    """Exclude cells that are ignored as a whole."""
    return maps.masked_fill(known[:, None] <= 0, -torch.inf)


def normalised_entropy(maps: Tensor) -> Tensor:
    """The entropy of each map divided by log N, (B, K): 1 if uniform, 0 if one location."""
    entropies: Tensor = torch.special.entr(maps.double()).sum(2)
    return entropies / math.log(maps.shape[2])


def overlap(maps: Tensor) -> Tensor:
    """The mean overlap of pairs of maps, the sum of min(a, b): (B,), 1 where equal."""
    rising = maps.double().sort(dim=1).values
    many = maps.shape[1]
    # Each value is the smaller one in its pairs with all that are larger.
    pairs = torch.arange(many - 1, -1, -1, dtype=torch.float64, device=maps.device)
    return (rising * pairs[:, None]).sum((1, 2)) / max(1, many * (many - 1) // 2)


def mean_correlation(maps: Tensor) -> Tensor:
    """The mean correlation over locations of all pairs of maps, (B,); constant ones left out.

    Unlike the overlap it is not close to 1 for maps that are nearly flat. NaN for less than 2 maps.
    """
    unit, varied = standardised(maps)
    many = varied.sum(1).double()
    total = unit.sum(1).square().sum(1)  # all pairs, each map with itself too
    return ((total - many) / (many * (many - 1))).masked_fill(many < 2, torch.nan)


def standardised(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Maps centred and of length 1, (B, K, N), 0 if constant; which are not, bool (B, K)."""
    maps = maps.double()
    mean = maps.mean(2, keepdim=True)
    centred = maps - mean
    length = centred.square().sum(2, keepdim=True).sqrt()
    varied = length > FLAT * mean.abs() * math.sqrt(maps.shape[2])
    return torch.where(varied, centred / length, 0.0), varied[..., 0]


def summary(values: np.ndarray) -> dict[str, object]:
    """The mean over images (n,) and its 95 % bootstrap interval; NaNs are left out."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {"value": None, "interval": None, "images": 0}
    drawn = generator(len(values)).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [0.025, 0.975])
    interval = [float(low), float(high)]
    return {"value": float(values.mean()), "interval": interval, "images": len(values)}
