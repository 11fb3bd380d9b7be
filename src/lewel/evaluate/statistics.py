"""Means over seeds with their intervals, what they decide, and what too few images do not."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple

# 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
T_QUANTILES = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip

FEW = 30  # with fewer images an interval by the bootstrap is too narrow
Verdict = Literal["holds", "undecided", "contradicted", "not measured"]


def counted(images: int) -> str:
    """A number of images, marked where there are too few for an interval."""
    return f"{images:,}" + (" (too few)" if images < FEW else "")


def warnings_of(images: int) -> list[str]:
    """A warning where a validation set is too small for the interval of its numbers."""
    if images >= FEW:
        return []
    return [
        f"Warning: {images} images are too few to evaluate on, whatever the interval says: "
        f"expected {FEW} or more."
    ]


class Estimate(NamedTuple):
    """A mean over seeds and half the width of its 95 % interval; None for a single seed."""

    mean: float
    margin: float | None
    seeds: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of a number over seeds, with Student's 95 % interval."""
    if len(values) < 2:
        return Estimate(fmean(values), None, len(values))
    freedom = len(values) - 1
    quantile = T_QUANTILES[min(freedom, len(T_QUANTILES)) - 1]  # for more a little too wide
    return Estimate(fmean(values), quantile * stdev(values) / math.sqrt(len(values)), len(values))


def paired_difference(one: dict[int, float], two: dict[int, float]) -> Estimate | None:
    """The mean of one - two over the seeds that both have; None where there are none."""
    seeds = sorted(one.keys() & two.keys())
    return estimate([one[seed] - two[seed] for seed in seeds]) if seeds else None


def verdict(difference: Estimate | None) -> Verdict:
    """Whether "better" is decided by the interval of a paired difference.

    Equal differences of a few seeds have no interval either.
    """
    if difference is None:
        return "not measured"
    if not difference.margin:
        return "undecided"
    if difference.mean - difference.margin > 0:
        return "holds"
    return "contradicted" if difference.mean + difference.margin < 0 else "undecided"
