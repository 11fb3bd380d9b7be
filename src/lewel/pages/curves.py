"""Curves of a run as coordinates; the template chart.html draws them as SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def envelope(x: Numbers, y: Numbers, low: float, high: float, bins: int = BINS) -> Numbers:
    """Points (N,) in at most `bins` columns: x, lowest, mean, highest of each, (M, 4)."""
    width = (high - low) / bins or 1.0
    column = np.clip(((x - low) / width).astype(np.int64), 0, bins - 1)
    order = np.argsort(column, kind="stable")
    x, y, column = x[order], y[order], column[order]
    first = np.flatnonzero(np.diff(column, prepend=-1))
    if not len(first):
        return np.empty((0, 4))
    counts = np.diff(first, append=len(x))
    rows = (
        np.add.reduceat(x, first) / counts,
        np.minimum.reduceat(y, first),
        np.add.reduceat(y, first) / counts,
        np.maximum.reduceat(y, first),
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
    metrics: Sequence[list[dict[str, Any]]],
    reference: Mapping[str, Numbers] | None = None,
) -> list[Chart]:
    """A chart for every metric of any run, with a curve for each run and for the reference."""
    found = dict.fromkeys(key for lines in metrics for line in lines for key in line)
    keys = [key for key in KNOWN if key in found]
    keys += [key for key in found if key not in KNOWN and key not in ("step", "epoch")]
    drawn = []
    for key in keys:
        points = [series(lines, key) for lines in metrics]
        if any(np.isfinite(y).any() for _, y in points):
            drawn.append(chart(key, names, points, (reference or {}).get(key)))
    return drawn


def series(lines: list[dict[str, Any]], key: str) -> tuple[Numbers, Numbers]:
    """Epochs and values of one metric, each (N,)."""
    pairs = [
        (line["epoch"], line[key])
        for line in lines
        if isinstance(line.get(key), int | float) and isinstance(line.get("epoch"), int | float)
    ]
    both = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def chart(
    key: str,
    names: Sequence[str],
    points: list[tuple[Numbers, Numbers]],
    reference: Numbers | None = None,
) -> Chart:
    """One metric of all runs in one chart, before the reference's epoch, mean and range (N, 4)."""
    title, about, form = KNOWN.get(key, (key.replace("_", " ").capitalize(), "", PLAIN))
    finite = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in points]
    behind = np.empty((0, 4)) if reference is None else reference
    all_x = np.concatenate([behind[:, 0], *(x for x, _ in finite)])
    all_y = np.concatenate([behind[:, 1:].ravel(), *(y for _, y in finite)])
    low, high = padded(float(all_y.min()), float(all_y.max()))
    axes = Axes(min(0.0, float(all_x.min())), float(all_x.max()) or 1.0, low, high)
    return Chart(
        title=title,
        about=about,
        curves=tuple(
            curve(index, names[index], x, y, axes, form, len(points[index][1]) - len(y))
            for index, (x, y) in enumerate(finite)
            if len(x)
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


def curve(
    run: int, name: str, x: Numbers, y: Numbers, axes: Axes, form: Format, missing: int
) -> Curve:
    """The curve of one run's values (N,) at epochs (N,)."""
    rows = envelope(x, y, axes.start, axes.end)
    lower, means, upper = (
        [(axes.x(row[0]), axes.y(row[column])) for row in rows] for column in (1, 2, 3)
    )
    first, last, lowest, highest = (form(float(v)) for v in (y[0], y[-1], y.min(), y.max()))
    return Curve(
        run=run,
        name=name,
        line=path(means),
        band=path([*upper, *reversed(lower)]) + "Z" if upper != lower else "",
        dots=tuple(means) if len(means) <= DOTTED else (),
        last=last,
        summary=f"{name}: {first} at epoch {x[0]:.4g}, {last} at epoch {x[-1]:.4g}; "
        f"lowest {lowest}, highest {highest}",
        missing=missing,
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
