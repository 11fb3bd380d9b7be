"""Interleaved timing of several entries, so that other load affects all of them equally."""

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lewel.ops.randomness import generator
from lewel.progress import show

PLAIN_SECONDS = 5.0  # between two lines where there is no terminal


class Bar:
    """A progress bar in a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, total: int, what: str) -> None:
        self.console, self.total, self.what, self.done = console, total, what, 0
        self.printed = time.monotonic()
        self.progress: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(30), TimeRemainingColumn())
            self.progress = Progress(*columns, console=console, transient=True)
            self.task = self.progress.add_task(what, total=total)

    def __enter__(self) -> "Bar":
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def tick(self, doing: str = "") -> None:
        """Advance by one."""
        self.done += 1
        text = f"{self.what}: {doing}" if doing else self.what
        if self.progress is not None:
            self.progress.update(self.task, advance=1, description=text)
        elif time.monotonic() - self.printed >= PLAIN_SECONDS:
            self.printed = time.monotonic()
            show(self.console, f"{text} {self.done}/{self.total}")


def clock(device: torch.device) -> float:
    """The current time in seconds, after synchronising the device.

    On one CPU thread it is CPU time, which excludes other processes. With several threads it is
    wall time, because threads wait for each other.
    """
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.process_time() if uses_cpu_time(device) else time.perf_counter()


def uses_cpu_time(device: torch.device) -> bool:
    """Whether `clock` returns CPU time of this process instead of wall time."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def interleaved(
    entries: Mapping[str, Callable[[], Any]],
    rounds: int,
    device: torch.device,
    bar: Bar,
    warmup: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each entry in each round; every round has a random order.

    An entry affects the caches and the heap of the next one, so the order must vary.
    """
    names = list(entries)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        for name in (names[place] for place in generator(number).permutation(len(names))):
            begun = clock(device)
            entries[name]()
            took = clock(device) - begun
            if number >= warmup:
                times[name].append(took)
            bar.tick(name)
    return times


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """The time of `name` divided by that of `base`: the median over the rounds.

    Taken per round, so that temporary load affects both sides.
    """
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def quartiles(values: list[float]) -> tuple[float, float]:
    """The lower and upper quartile."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high
