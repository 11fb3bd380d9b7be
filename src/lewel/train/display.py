"""Console output of a run: a live line in a terminal, plain lines elsewhere."""

import time
from collections import deque
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

PLAIN_SECONDS = 5.0  # between two lines where there is no terminal
RECENT = 20  # lines that the ETA is computed from


class Display:
    """Shows epoch, loss, lr, images/s, the fraction of time spent waiting for data, and the ETA."""

    def __init__(self, steps: int, done: int, steps_per_epoch: int, console: Console) -> None:
        self.steps, self.done, self.steps_per_epoch = steps, done, steps_per_epoch
        self.console = console
        self.marks: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self.printed = float("-inf")
        self.progress: Progress | None = None
        if console.is_terminal:
            columns = (BarColumn(20), TextColumn("{task.description}"), TimeRemainingColumn())
            self.progress = Progress(*columns, console=console)
            self.task = self.progress.add_task("starting", total=steps, completed=done)
            self.progress.start()

    def begin(self) -> None:
        """Start the clock of the ETA, just before the first step."""
        self.marks.append((time.monotonic(), self.done))

    def report(self, text: str) -> None:
        """Print a message above the live line."""
        self.console.print(Text(text), soft_wrap=True)

    def status(self, text: str) -> None:
        """Show work between two steps, in the live line only."""
        if self.progress is not None:
            self.progress.update(self.task, description=text)

    def work(self, text: str, done: int, total: int) -> None:
        """Show how much of some work between two steps is done."""
        line = f"{text}: {done:,} of {total:,}"
        if self.progress is not None:
            self.status(line)
        elif time.monotonic() - self.printed >= PLAIN_SECONDS:
            self.printed = time.monotonic()
            self.report(line)

    def show(self, line: dict[str, Any]) -> None:
        """Show the metrics of a step."""
        step = line["step"]
        wide = len(str(self.steps))
        epochs = self.steps / self.steps_per_epoch  # evaluations may end within an epoch
        last = f"{epochs:.0f}" if epochs.is_integer() else f"{epochs:.2f}"
        text = (
            f"epoch {step / self.steps_per_epoch:.2f}/{last} "
            f" step {step:>{wide}}/{self.steps}  loss {line['loss']:.4f}  lr {line['lr']:.3g}"
            f"  {line['images_per_s']:.0f} images/s  data wait {line['data_wait']:.0%}"
        )
        if self.progress is not None:
            self.progress.update(self.task, completed=step, description=text)
        elif time.monotonic() - self.printed >= PLAIN_SECONDS or step == self.steps:
            self.printed = time.monotonic()
            self.report(f"{text}  ETA {self._eta(step)}")

    def _eta(self, step: int) -> str:
        """ETA by the throughput of the last reports, so that a slow start does not count."""
        now, (then, before) = time.monotonic(), self.marks[0]
        self.marks.append((now, step))
        left = int((now - then) / max(step - before, 1) * (self.steps - step))
        return f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
