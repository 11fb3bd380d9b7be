"""`lewel bench scale`: time by sizes, and throughput by processes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import numpy as np
import torch
from rich.console import Console
from torch import nn

from lewel.bench.machine import describe_machine
from lewel.bench.processes import speed_of_ranks, speed_of_workers
from lewel.bench.steps import OurStep, new_method
from lewel.bench.timing import Bar, interleaved
from lewel.bench.workload import Workload
from lewel.files import write_marked
from lewel.methods.byol import BYOL
from lewel.methods.lewel_b import LewelB
from lewel.nn.heads import AlignedHeadSpec, CoupledHead

Axis = Literal["image_size", "batch", "maps", "positions", "workers", "ranks"]
AXES: tuple[Axis, ...] = get_args(Axis)
HEADER = ("against", "what", "values", "measured", "growth")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Curve:
    """A quantity at several values of one size."""

    axis: Axis
    what: str  # the quantity, with its unit
    values: list[float]
    measured: list[float]

    @property
    def growth(self) -> float | None:
        """The exponent of a power law, fitted on logarithms: 1 is linear, 2 is quadratic."""
        points = [(x, y) for x, y in zip(self.values, self.measured, strict=True) if x > 0 < y]
        if len(points) < 2:
            return None
        logs = np.log(np.array(points))
        return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def bench_scale(
    work: Workload,
    *,
    axes: Sequence[Axis],
    rounds: int,
    threads: int,
    data: str | None,
    console: Console,
) -> dict[str, Any]:
    """Measure along each axis -> the result for the JSON file."""
    torch.set_num_threads(threads)
    machine = describe_machine(threads)
    curves: list[Curve] = []
    for axis in axes:
        if axis == "workers":
            curves.append(_workers(work, data, rounds, threads, console))
        elif axis == "ranks":
            curves.append(_ranks(rounds, threads, console))
        else:
            curves += _costs(axis, work, rounds, console)
    return {
        "bench": "scale",
        "title": f"around {work.title}",
        "machine": machine,
        "rounds": rounds,
        "curves": [
            {
                "axis": curve.axis,
                "what": curve.what,
                "values": curve.values,
                "measured": curve.measured,
                "growth": curve.growth,
            }
            for curve in curves
        ],
    }


def variants(axis: Axis, work: Workload) -> dict[float, Workload]:
    """The workload at several values of one size."""
    if axis == "image_size":
        sizes = [32 * math.ceil(work.image_size * factor / 32) for factor in (1, 1.5, 2, 3)]
        return {size: replace(work, image_size=size) for size in sizes}
    if axis == "batch":
        batches = sorted({max(2, int(work.batch_size * factor)) for factor in (0.25, 0.5, 1, 2)})
        return {batch: replace(work, batch_size=batch) for batch in batches}
    sizes_per_group = {max(1, int(work.dim * f) // work.groups) for f in (0.25, 0.5, 1, 2)}
    dims = sorted(work.groups * size for size in sizes_per_group)
    return {dim: replace(work, dim=dim) for dim in dims}


def _costs(axis: Axis, work: Workload, rounds: int, console: Console) -> list[Curve]:
    """Milliseconds of a step, or of the head only, along an axis."""
    if axis == "positions":
        steps = {f"{n}": head_step(work, n) for n in (4, 9, 16, 49, 100)}
        return [_curve(axis, "ms of LEWEL's head, forward and backward", steps, rounds, console)]
    curves = []
    for kind in (LewelB, BYOL):
        steps = {
            f"{value:g}": OurStep(new_method(kind, variant), variant, CPU).step
            for value, variant in variants(axis, work).items()
        }
        curves.append(_curve(axis, f"ms of a step of {kind.about.title}", steps, rounds, console))
    return curves


def head_step(work: Workload, locations: int) -> Callable[[], object]:
    """Forward and backward of the coupled head on features (B, locations, C)."""
    torch.manual_seed(work.seed)
    channels = work.new_backbone().channels
    head: nn.Module = CoupledHead(
        channels, AlignedHeadSpec(work.dim, work.hidden, "batch", work.aligned_dim, work.groups)
    )
    features = torch.randn(work.batch_size, locations, channels, requires_grad=True)

    def step() -> None:
        out = head(features)
        (out.pooled.mean() + out.aligned.mean()).backward()
        head.zero_grad(set_to_none=True)

    return step


def _curve(
    axis: Axis, what: str, steps: dict[str, Callable[[], object]], rounds: int, console: Console
) -> Curve:
    with Bar(console, len(steps) * (rounds + 1), f"bench scale, {axis}") as bar:
        times = interleaved(steps, rounds, CPU, bar)
    measured = [1000 * median(taken) for taken in times.values()]
    return Curve(axis, what, [float(value) for value in times], measured)


def _workers(
    work: Workload, data: str | None, rounds: int, threads: int, console: Console
) -> Curve:
    counts = [0, *sorted({1, 2, threads})]
    with Bar(console, len(counts) * rounds, "bench scale, workers") as bar:
        speeds = speed_of_workers(counts, data, work.image_size, rounds, bar)
    values = [float(count) for count in counts]
    return Curve("workers", "images read a second (0: in the training process)", values, speeds)


def _ranks(rounds: int, threads: int, console: Console) -> Curve:
    counts = [1, 2] if threads < 4 else [1, 2, 4]
    with Bar(console, len(counts) * rounds, "bench scale, ranks") as bar:
        speeds = speed_of_ranks(counts, threads, rounds, bar)
    what = "images trained a second, the same total batch and threads"
    return Curve("ranks", what, [float(count) for count in counts], speeds)


def scale_rows(result: dict[str, Any]) -> list[list[str]]:
    """The rows under HEADER."""
    return [
        [
            curve["axis"],
            curve["what"],
            ", ".join(f"{value:g}" for value in curve["values"]),
            ", ".join(f"{value:.1f}" for value in curve["measured"]),
            "" if curve["growth"] is None else f"x^{curve['growth']:.2f}",
        ]
        for curve in result["curves"]
    ]


def plot_scale(result: dict[str, Any], path: Path) -> None:
    """One log-log panel per axis, with the growth in the legend."""
    from matplotlib.figure import Figure

    axes = list(dict.fromkeys(curve["axis"] for curve in result["curves"]))
    rows = math.ceil(len(axes) / 3)
    figure = Figure(figsize=(12, 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).flatten()
    for panel, axis in zip(panels, axes, strict=False):
        for curve in (c for c in result["curves"] if c["axis"] == axis):
            growth = "" if curve["growth"] is None else f" (x^{curve['growth']:.2f})"
            label = curve["what"].removeprefix("ms of ") + growth
            panel.plot(curve["values"], curve["measured"], "o-", label=label)
        panel.set_yscale("log")
        panel.set_xscale("symlog" if axis == "workers" else "log", base=2)
        panel.set_xlabel(axis.replace("_", " "))
        panel.set_ylabel("images/s" if axis in ("workers", "ranks") else "ms")
        panel.legend(fontsize="x-small")
    for panel in panels[len(axes) :]:
        panel.set_visible(False)
    figure.suptitle(result["title"])
    write_marked(path, "bench", lambda temp: figure.savefig(temp, format="png", dpi=120))
