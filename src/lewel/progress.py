"""What is printed: plain lines, and the progress of long work."""

import os
import signal
import time
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import strip_control_codes
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

PLAIN_SECONDS = 5.0  # between two lines where there is no terminal


def plain_console(**options: Any) -> Console:
    """A console that prints text as it is: a path such as a:smile:[b] is no emoji and no markup."""
    return PlainConsole(markup=False, emoji=False, highlight=False, **options)


class PlainConsole(Console):
    """A console that stops the command when nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """Stop as when a terminal is closed, so that a run is saved first; a pipe's end is no error
        of other commands.
        """
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
        if callable(signal.getsignal(signal.SIGHUP)):  # a run heeds it
            plain_console(stderr=True).print("The output was closed: its reader has ended.")
            os.kill(os.getpid(), signal.SIGHUP)
        elif signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup: work on unseen
            raise SystemExit(128 + signal.SIGPIPE)


def show(console: Console, *lines: str) -> None:
    """Print lines as they are on any console, also on a user's own."""
    for line in lines:
        console.print(Line(line), soft_wrap=True)


def wide(console: Console, columns: int) -> Console:
    """A console for tables: a file or a pipe has no edge."""
    if not console.is_terminal:
        console.width = columns
    return console


class Line:
    """A line as it is; rich's own texts have spaces in the place of tabs, which paths may have."""

    def __init__(self, text: str) -> None:
        self.text = strip_control_codes(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(f"{self.text}\n")


class Bar:
    """Counts up to a total, within a `with`; `shown` is for the rank that prints."""

    def __init__(self, text: str, total: int, console: Console, *, shown: bool = True) -> None:
        self.text, self.total, self.console, self.shown = text, total, console, shown
        self.done, self.cached, self.began = 0, 0, time.monotonic()
        self.printed = self.began
        self.progress: Progress | None = None

    def __enter__(self) -> "Bar":
        if self.console.is_terminal and self.shown:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self.progress = Progress(*columns, console=self.console, transient=True)
            self.task = self.progress.add_task(self.text, total=self.total)
            self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def advance(self, count: int, *, cached: bool = False) -> None:
        """So much more is done; what was done before (`cached`) does not count for the pace."""
        self.done += count
        self.cached += count if cached else 0
        now = time.monotonic()
        if self.progress is not None:
            self.progress.advance(self.task, count)
        elif self.shown and now - self.printed >= PLAIN_SECONDS:
            self.printed = now
            pace = max(1, self.done - self.cached) / (now - self.began)
            left = int((self.total - self.done) / pace)
            line = f"{self.text}: {self.done:,} of {self.total:,}"
            eta = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
            show(self.console, f"{line}  ETA {eta}")


def rank_from_outside() -> int:
    """The number of this process where torchrun or srun has started it, else 0."""
    for rank, ranks in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        number, count = (os.environ.get(name, "") for name in (rank, ranks))
        if number.isdecimal() and count.isdecimal() and int(count) > 1:  # else left over
            return int(number)
    return 0
