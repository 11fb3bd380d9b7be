"""Throughput of a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lewel.data.views.loader import Batch


class Clock:
    """Images per second and the fraction of time spent waiting for data, since the last lap."""

    def __init__(self) -> None:
        self.started, self.waited, self.images = time.monotonic(), 0.0, 0

    def waiting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            before = time.monotonic()
            batch = next(batches, None)
            self.waited += time.monotonic() - before
            if batch is None:
                return
            yield batch

    def lap(self) -> dict[str, float]:
        took = max(time.monotonic() - self.started, 1e-9)
        numbers = {
            "images_per_s": round(self.images / took, 2),
            "data_wait": round(self.waited / took, 4),
        }
        self.__init__()  # type: ignore[misc]
        return numbers

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Count the time as spent waiting for data."""
        before = time.monotonic()
        yield
        self.waited += time.monotonic() - before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude probes and checkpoint writes from the time."""
        before = time.monotonic()
        yield
        self.started += time.monotonic() - before
