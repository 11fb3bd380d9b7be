"""The reference of a recipe: earlier runs, drawn behind a new one and compared with it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lewel.train.summary import Summary

Numbers = NDArray[np.float64]

# Of one run the range is not known: a value may differ by so much of it.
SLACK = 0.15
NAMES = {"loss": "The loss", "embedding_std": "The embedding std", "knn": "The k-NN accuracy"}
# Which side is a bad sign: a loss may also be too low (collapse), a k-NN accuracy may not.
BOTH_SIDES = {"loss"}


@dataclass(frozen=True)
class Reference:
    """What runs of a recipe did: metric -> rows of epoch, mean, lowest and highest, (N, 4).

    A row of a metric that is written at every step is a mean over `width` epochs around its epoch.
    """

    recipe: str
    source: str
    width: float
    curves: Mapping[str, Numbers]
    compared: frozenset[str] = frozenset(NAMES)  # the others are only drawn


def departures(reference: Reference, metrics: Summary) -> list[str]:
    """A sentence for each metric whose latest comparable value lies outside the reference."""
    found = []
    for key, rows in reference.curves.items():
        if key not in reference.compared:
            continue
        width = reference.width if key != "knn" else 0.0
        values = means_at(metrics, key, rows[:, 0], width)
        known = np.flatnonzero(np.isfinite(values))
        if not len(known):
            continue
        epoch, _, low, high = rows[known[-1]]
        value, slack = float(values[known[-1]]), max(high - low, SLACK * abs(high))
        if value < low - slack or (key in BOTH_SIDES and value > high + slack):
            range_ = text(low, key) if high == low else f"{text(low, key)} to {text(high, key)}"
            found.append(
                f"{NAMES[key]} is {text(value, key)} at epoch {epoch:.4g}, where {reference.source}"
                f" had {range_} ({reference.recipe})."
            )
    return found


def means_at(metrics: Summary, key: str, epochs: Numbers, width: float) -> Numbers:
    """The mean of a metric over `width` epochs around each epoch; NaN where it is not complete."""
    x, _, y, _ = metrics.points(key).T
    last = metrics.epoch or 0.0
    out = np.full(len(epochs), np.nan)
    for index, epoch in enumerate(epochs):
        # A metric that is written at every step, or one that is written at the ends of epochs.
        inside = (
            (x > epoch - width / 2) & (x <= epoch + width / 2) if width else np.isclose(x, epoch)
        )
        if inside.any() and epoch + width / 2 <= last + 1e-3:
            out[index] = y[inside].mean()
    return out


def text(value: float, key: str) -> str:
    """A value as a report shows it."""
    return f"{value:.1%}" if key == "knn" else f"{value:.3g}"
