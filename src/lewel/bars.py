"""How long work shows itself: a bar in a terminal, a plain line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 5.0  # between two lines where there is no terminal


class Bar:
    """Counts up to a total, within a `with`."""

    def __init__(self, text: str, total: int, console: Console) -> None:
        self.text, self.total, self.console = text, total, console
        self.done, self.known, self.began = 0, 0, time.monotonic()
        self.printed = self.began
        self.progress: Progress | None = None

    def __enter__(self) -> "Bar":
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self.progress = Progress(*columns, console=self.console, transient=True)
            self.task = self.progress.add_task(self.text, total=self.total)
            self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.progress is not None:
            self.progress.stop()

    def advance(self, count: int, *, known: bool = False) -> None:
        """So much more is done; what was known from before says nothing of the pace."""
        self.done += count
        self.known += count if known else 0
        now = time.monotonic()
        if self.progress is not None:
            self.progress.advance(self.task, count)
        elif now - self.printed >= PLAIN_SECONDS:
            self.printed = now
            pace = max(1, self.done - self.known) / (now - self.began)
            left = int((self.total - self.done) / pace)
            line = f"{self.text}: {self.done:,} of {self.total:,}"
            eta = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
            self.console.print(f"{line}  ETA {eta}", highlight=False, markup=False)
