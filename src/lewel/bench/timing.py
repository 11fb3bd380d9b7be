"""Seconds of several contenders in one process, in turns, so that what else runs hits them all."""

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lewel.ops.randomness import generator

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
        """One more part is done."""
        self.done += 1
        text = f"{self.what}: {doing}" if doing else self.what
        if self.progress is not None:
            self.progress.update(self.task, advance=1, description=text)
        elif time.monotonic() - self.printed >= PLAIN_SECONDS:
            self.printed = time.monotonic()
            self.console.print(f"{text} {self.done}/{self.total}", highlight=False, markup=False)


def clock(device: torch.device) -> float:
    """Seconds on a clock, after all that the device was asked to do.

    On one thread of a processor its own seconds are counted, which leave out what other processes
    took; several threads wait for each other, so that only the wall's clock is fair to them.
    """
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.process_time() if counts_own_seconds(device) else time.perf_counter()


def counts_own_seconds(device: torch.device) -> bool:
    """Whether `clock` counts this process's seconds instead of the wall's."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def interleaved(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int,
    device: torch.device,
    bar: Bar,
    warmup: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each contender in each round; every round has an order of its own.

    What one leaves in caches and heap is the next one's burden: it must not always be the same.
    """
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        for name in (names[place] for place in generator(number).permutation(len(names))):
            begun = clock(device)
            contenders[name]()
            took = clock(device) - begun
            if number >= warmup:
                times[name].append(took)
            bar.tick(name)
    return times


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """How many times longer than another one it took: the median over the rounds.

    Taken round by round, so that a load that comes and goes hits both sides.
    """
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def spread_of(values: list[float]) -> tuple[float, float]:
    """The quartiles of some values."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high
