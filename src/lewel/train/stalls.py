"""Whether the main thread of a rank is stuck in a step, for the thread of its heartbeat."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

LONGER = 10  # times the longest step so far: a run of slow steps is not stuck
Item = TypeVar("Item")


class StepWatch:
    """The step that the main thread is in, since when, and whether it waits for a batch.

    Work between two steps, such as a probe or a checkpoint, may take any time. So may the first
    step, in which networks are compiled and data workers started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.step, self.taken, self.longest = 0, 0, 0.0
        self.since: float | None = None
        self.reading = False

    @contextmanager
    def within(self, step: int, *, taken: bool = True) -> Iterator[None]:
        """Within it the step is taken, or waited for after it was `taken` (GPUs compute later)."""
        with self._lock:
            self.step, self.since = step, time.monotonic()
        yield  # an error ends the run
        with self._lock:
            if self.taken and self.since is not None:
                self.longest = max(self.longest, time.monotonic() - self.since)
            self.taken, self.since = self.taken + taken, None

    def reads(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches; the time between them is computing, not reading."""
        iterator = iter(batches)
        while True:
            self.reading = True
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self.reading = False
            yield batch

    def forgive(self, seconds: float) -> None:
        """The process was stopped for so long: that was not the step's."""
        with self._lock:
            if self.since is not None:
                self.since += seconds

    def stuck(self, seconds: float) -> str | None:
        """What the main thread has not done for so long, if so; it completes "Rank 1 ..."."""
        with self._lock:
            since, limit = self.since, max(seconds, LONGER * self.longest)
            if since is None or not self.taken or time.monotonic() - since <= limit:
                return None
            what = "has waited for its batch of" if self.reading else "has not finished"
            return f"{what} step {self.step + 1} for {limit / 60:.3g} minutes (--rank-timeout)"
