"""Schedules as pure functions of progress, the finished fraction of the training in [0, 1]."""

import math
from collections.abc import Sequence
from typing import Literal

MomentumSchedule = Literal["constant", "cosine"]
RateSchedule = Literal["constant", "cosine", "steps"]
STEPS = (0.6, 0.8)  # epochs 30 and 40 of 50


def cosine(start: float, end: float, progress: float) -> float:
    """From start (progress 0) to end (progress 1) along half a cosine wave."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def learning_rate(
    peak: float,
    progress: float,
    warmup: float,
    schedule: RateSchedule,
    *,
    start: float = 0.0,
    end: float = 0.0,
) -> float:
    """Linear warm-up to the peak over the first `warmup` fraction, then the schedule.

    The warm-up begins at `start` times the peak. `cosine` falls to `end` times the peak; `steps`
    falls to a tenth at three and at four fifths of the training.
    """
    if progress < warmup:
        return peak * start + (peak - peak * start) * progress / warmup
    if schedule == "constant":
        return peak
    if schedule == "steps":
        return peak * 0.1 ** sum(progress >= step - 1e-9 for step in STEPS)
    return cosine(peak, peak * end, (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0)


def poly(peak: float, progress: float, power: float, lowest: float) -> float:
    """Polynomial decay from the peak (progress 0) to the lowest learning rate (progress 1)."""
    return lowest + (peak - lowest) * math.pow(1 - progress, power)


def detection_rate(
    peak: float, progress: float, steps: int, warmup: int, decays: Sequence[float]
) -> float:
    """Warm-up from a thousandth of the peak over `warmup` steps; a tenth at each of `decays`.

    `decays` are fractions of all steps.

    >>> [round(detection_rate(0.02, k / 24, 24, 0, (3 / 4, 11 / 12)), 6) for k in (17, 18, 22)]
    [0.02, 0.002, 0.0002]
    """
    step = round(progress * steps)
    rise = min(1.0, step / warmup) if warmup else 1.0
    fall = sum(step >= round(fraction * steps) for fraction in decays)
    return float(peak * (0.001 * (1 - rise) + rise) * 0.1**fall)


def teacher_momentum(start: float, progress: float, schedule: MomentumSchedule) -> float:
    """alpha of xi <- alpha xi + (1 - alpha) theta: constant, or to 1 along a cosine."""
    return start if schedule == "constant" else cosine(start, 1.0, progress)
