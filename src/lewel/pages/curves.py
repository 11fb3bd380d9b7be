"""Curves of a run as coordinates; the template chart.html draws them as SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lewel.train.summary import Series, Summary

Numbers = NDArray[np.float64]

BINS = 240  # across a chart: about one a pixel on a phone
WIDTH, HEIGHT = 380.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 10.0, 12.0, 34.0  # margins for the labels of the axes

Format = Callable[[float], str]
PERCENT: Format = "{:.1%}".format
PLAIN: Format = "{:.4g}".format
DOTTED = 24  # up to this many points each is marked

# Key in metrics.jsonl -> title, explanation, format of a value.
KNOWN: dict[str, tuple[str, str, Format]] = {
    "loss": ("Loss", "total training loss", PLAIN),
    "knn": ("k-NN accuracy", "k-NN probe on the validation set", PERCENT),
    "embedding_std": ("Embedding std, student", "1: random unit vectors, 0: collapsed", PLAIN),
    "teacher_embedding_std": (
        "Embedding std, teacher",
        "1: random unit vectors, 0: collapsed",
        PLAIN,
    ),
    "loss_global": ("Global loss", "of the global embeddings", PLAIN),
    "loss_aligned": ("Aligned loss", "of the aligned embeddings", PLAIN),
    "lr": ("Learning rate", "of the optimiser", PLAIN),
    "teacher_momentum": ("Teacher momentum", "1: the teacher is constant", "{:.6g}".format),
    "images_per_s": ("Images per second", "since the last log line", PLAIN),
    "data_wait": ("Data wait", "fraction of time spent waiting for images", PERCENT),
}


@dataclass(frozen=True)
class Curve:
    """One run's line in a chart."""

    run: int  # index of the run, for its colour
    name: str
    line: str  # an SVG path through the means
    band: str  # an SVG path around lowest and highest; empty where they are the mean
    dots: tuple[tuple[float, float], ...]  # if there are few points
    last: str
    summary: str  # as text, for screen readers
    missing: int  # values that are not finite


@dataclass(frozen=True)
class Chart:
    """A chart with the coordinates of all its elements."""

    title: str
    about: str
    curves: tuple[Curve, ...]
    reference: tuple[str, str]  # SVG paths of the mean and of the range; empty where there is none
    across: tuple[tuple[float, str], ...]  # ticks: x and label
    up: tuple[tuple[float, str], ...]  # ticks: y and label
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def envelope(points: Numbers, low: float, high: float, bins: int = BINS) -> Numbers:
    """Rows of x, lowest, mean and highest, (N, 4), in at most `bins` columns, (M, 4)."""
    width = (high - low) / bins or 1.0
    column = np.clip(((points[:, 0] - low) / width).astype(np.int64), 0, bins - 1)
    order = np.argsort(column, kind="stable")
    x, lowest, mean, highest = points[order].T
    first = np.flatnonzero(np.diff(column[order], prepend=-1))
    if not len(first):
        return np.empty((0, 4))
    counts = np.diff(first, append=len(x))
    rows = (
        np.add.reduceat(x, first) / counts,
        np.minimum.reduceat(lowest, first),
        np.add.reduceat(mean, first) / counts,
        np.maximum.reduceat(highest, first),
    )
    return np.stack(rows, axis=1)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers within a range, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * many for many in (1, 2, 2.5, 5, 10) if unit * many >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def charts(
    names: Sequence[str],
    metrics: Sequence[Summary],
    reference: Mapping[str, Numbers] | None = None,
) -> list[Chart]:
    """A chart for every metric of any run, with a curve for each run and for the reference."""
    found = dict.fromkeys(key for one in metrics for key in one.series)
    keys = [key for key in KNOWN if key in found]
    keys += [key for key in found if key not in KNOWN]
    drawn = []
    for key in keys:
        series = [one.series.get(key, Series()) for one in metrics]
        if any(one.first is not None for one in series):
            drawn.append(chart(key, names, series, (reference or {}).get(key)))
    return drawn


def chart(
    key: str,
    names: Sequence[str],
    series: list[Series],
    reference: Numbers | None = None,
) -> Chart:
    """One metric of all runs in one chart, before the reference's epoch, mean and range (N, 4)."""
    title, about, form = KNOWN.get(key, (key.replace("_", " ").capitalize(), "", PLAIN))
    points = [one.points() for one in series]
    ends = [point.epoch for one in series for point in (one.first, one.last) if point]
    behind = np.empty((0, 4)) if reference is None else reference
    all_x = np.concatenate([behind[:, 0], ends, *(rows[:, 0] for rows in points)])
    all_y = np.concatenate([behind[:, 1:].ravel(), *(rows[:, 1:].ravel() for rows in points)])
    low, high = padded(float(all_y.min()), float(all_y.max()))
    axes = Axes(min(0.0, float(all_x.min())), float(all_x.max()) or 1.0, low, high)
    return Chart(
        title=title,
        about=about,
        curves=tuple(
            curve(index, names[index], one, points[index], axes, form)
            for index, one in enumerate(series)
            if one.first is not None
        ),
        reference=reference_paths(behind, axes),
        across=tuple((axes.x(x), f"{x:.6g}") for x in ticks(axes.start, axes.end)),
        up=tuple((axes.y(y), tick_label(y, form)) for y in ticks(low, high)),
    )


@dataclass(frozen=True)
class Axes:
    """The scales of a chart."""

    start: float
    end: float
    low: float
    high: float

    def x(self, value: float) -> float:
        fraction = (value - self.start) / (self.end - self.start)
        return round(LEFT + fraction * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        fraction = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - fraction * (HEIGHT - TOP - BOTTOM), 1)


def curve(run: int, name: str, series: Series, points: Numbers, axes: Axes, form: Format) -> Curve:
    """The curve of one run's values, of which there is at least one, through points (N, 4)."""
    assert series.first is not None and series.last is not None
    rows = envelope(points, axes.start, axes.end)
    lower, means, upper = (
        [(axes.x(row[0]), axes.y(row[column])) for row in rows] for column in (1, 2, 3)
    )
    ends = (series.first.value, series.last.value, points[:, 1].min(), points[:, 3].max())
    first, last, lowest, highest = (form(float(value)) for value in ends)
    return Curve(
        run=run,
        name=name,
        line=path(means),
        band=path([*upper, *reversed(lower)]) + "Z" if upper != lower else "",
        dots=tuple(means) if len(means) <= DOTTED else (),
        last=last,
        summary=f"{name}: {first} at epoch {series.first.epoch:.4g}, {last} at epoch "
        f"{series.last.epoch:.4g}; "
        f"lowest {lowest}, highest {highest}",
        missing=series.missing,
    )


def reference_paths(rows: Numbers, axes: Axes) -> tuple[str, str]:
    """The paths of a reference's mean and of its range."""
    if not len(rows):
        return "", ""
    means, lower, upper = (
        [(axes.x(row[0]), axes.y(row[column])) for row in rows] for column in (1, 2, 3)
    )
    return path(means), path([*upper, *reversed(lower)]) + "Z" if upper != lower else ""


def padded(low: float, high: float) -> tuple[float, float]:
    """A range with a margin, also around a flat line."""
    air = (high - low) * 0.04 or abs(high) * 0.05 or 0.5
    floor = 0.0 if 0 <= low < air + (high - low) * 0.1 else low - air
    return floor, high + air


def tick_label(value: float, form: Format) -> str:
    """The short label of a tick."""
    return f"{value:.3g}".replace("e-0", "e-") if form is not PERCENT else f"{100 * value:.3g} %"


def path(points: list[tuple[float, float]]) -> str:
    """An SVG path through points."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
