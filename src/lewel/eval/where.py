"""Numbers for where a network looks: pure functions of maps (B, K, N) that each sum to 1.

Cells of the image are h x w as the maps are. `inside` (B, N) is how much of each cell is object and
`known` (B, N) how much of it is of known kind, both as shares of the cell.
"""

import math

import numpy as np
import torch
from torch import Tensor

from lewel.ops.randomness import generator

LEAST_CELLS = 16  # of an overlap, below which a correlation says nothing
FLAT = 1e-6  # a map that varies by less than this part of its mean is constant: rounding, no look
RESAMPLES = 1000


def correlation(one: Tensor, two: Tensor, shared: Tensor, least: int = LEAST_CELLS) -> Tensor:
    """The correlation of two maps (B, K, G) over the cells they share, bool (B, G) -> (B, K).

    NaN where they share fewer than `least` cells, or where either is constant there.
    """
    count = shared.sum(1).double()[:, None]
    weight = shared[:, None].double()
    one, two = one.double(), two.double()
    centred, spreads, flat = [], [], []
    for maps in (one, two):
        mean = (maps * weight).sum(2, keepdim=True) / count[..., None]
        apart = (maps - mean) * weight
        spread = apart.square().sum(2).sqrt()
        centred.append(apart)
        spreads.append(spread)
        flat.append(spread <= FLAT * mean[..., 0].abs() * count.sqrt())
    out = (centred[0] * centred[1]).sum(2) / (spreads[0] * spreads[1])
    return out.masked_fill(flat[0] | flat[1] | (count < least), torch.nan)


def pointing(maps: Tensor, inside: Tensor, known: Tensor) -> Tensor:
    """How surely the highest point of each map lies on the object, (B, K).

    A map is highest at a whole cell, or at several: any point of them is as good as another, so
    that the answer is the object's share of what is known of them.
    """
    highest = _where_known(maps, known)
    best = (highest == highest.amax(2, keepdim=True)).double()
    return (best @ inside.double()[..., None] / (best @ known.double()[..., None]))[..., 0]


def cut_iou(maps: Tensor, inside: Tensor, known: Tensor) -> Tensor:
    """IoU of the object with the highest part of each map, as large as the object, (B, K).

    Of cells that tie, and of the last cell, which is cut, points are taken by chance: what they
    share with the object is counted by its expectation.
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


def _where_known(maps: Tensor, known: Tensor) -> Tensor:
    """Nothing is looked for in a cell of which nothing is known."""
    return maps.masked_fill(known[:, None] <= 0, -torch.inf)


def evenness(maps: Tensor) -> Tensor:
    """The entropy of each map over log N, (B, K): 1 for the uniform map, 0 for one position."""
    entropies: Tensor = torch.special.entr(maps.double()).sum(2)
    return entropies / math.log(maps.shape[2])


def overlap(maps: Tensor) -> Tensor:
    """The mean over pairs of maps of what they share, the sum of min(a, b): (B,), 1 where equal."""
    rising = maps.double().sort(dim=1).values
    many = maps.shape[1]
    # Each value is the smaller one in its pairs with all that are larger.
    pairs = torch.arange(many - 1, -1, -1, dtype=torch.float64, device=maps.device)
    return (rising * pairs[:, None]).sum((1, 2)) / max(1, many * (many - 1) // 2)


def likeness(maps: Tensor) -> Tensor:
    """The mean correlation over positions of all pairs of maps, (B,); constant ones left out.

    Unlike the overlap it does not mind that all maps are nearly flat. NaN for less than two maps.
    """
    unit, varied = standardised(maps)
    many = varied.sum(1).double()
    total = unit.sum(1).square().sum(1)  # all pairs, each map with itself too
    return ((total - many) / (many * (many - 1))).masked_fill(many < 2, torch.nan)


def standardised(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Maps centred and of length 1, (B, K, N), zero where constant; which are not, bool (B, K)."""
    maps = maps.double()
    mean = maps.mean(2, keepdim=True)
    apart = maps - mean
    length = apart.square().sum(2, keepdim=True).sqrt()
    varied = length > FLAT * mean.abs() * math.sqrt(maps.shape[2])
    return torch.where(varied, apart / length, 0.0), varied[..., 0]


def summary(values: np.ndarray) -> dict[str, object]:
    """The mean of a number over images (n,) and its 95 % interval; NaN images are left out.

    The interval is that of the mean over images drawn anew with replacement.
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return {"value": None, "interval": None, "images": 0}
    drawn = generator(len(values)).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [0.025, 0.975])
    interval = [float(low), float(high)]
    return {"value": float(values.mean()), "interval": interval, "images": len(values)}
