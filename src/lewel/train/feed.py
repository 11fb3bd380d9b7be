"""Batches from storage that may not answer for a while: fetched by a thread, and counted."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from lewel.data.pack.patience import stop_waiting

JOIN: Final = 5.0  # seconds in which the thread ends
_END: Final = object()


class Feed:
    """The batches of a loader; `ready` are here already, so that no rank starts a step alone.

    A loop that waits for a batch in `next` could neither save nor stop during an outage.
    """

    def __init__(self, loader: Iterable[Any], depth: int) -> None:
        stop_waiting(False)
        self.error: BaseException | None = None
        self._ended = False  # the queue ends with _END, or will
        self._queue: queue.Queue[Any] = queue.Queue(depth)
        self._stopped, self._arrived = threading.Event(), threading.Event()
        self._batches = iter(loader)  # starts the workers, from the main thread
        self._thread = threading.Thread(target=self._fetch, name="feed", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> int:
        """How many batches are here."""
        return max(0, self._queue.qsize() - self._ended)

    def wait(self, seconds: float) -> None:
        """Wait until a batch or an error has arrived, or for so long."""
        self._arrived.wait(seconds)
        self._arrived.clear()

    def __iter__(self) -> Iterator[Any]:
        while (batch := self._queue.get()) is not _END:
            yield batch
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the thread, the workers and their waits for storage."""
        self._stopped.set()
        stop_waiting()
        self._thread.join(JOIN)
        if self._thread.is_alive():  # a worker waits for a request that hangs
            _kill_workers(self._batches)
        else:
            getattr(self._batches, "_shutdown_workers", lambda: None)()
            stop_waiting(False)

    def _fetch(self) -> None:
        try:
            for batch in self._batches:
                if not self._put(batch):
                    return
        except BaseException as error:
            self.error = error
        self._ended = True
        self._put(_END)

    def _put(self, batch: Any) -> bool:
        """Add a batch where there is room; False where the feed was closed meanwhile."""
        while not self._stopped.is_set():
            try:
                self._queue.put(batch, timeout=0.1)
            except queue.Full:
                continue
            self._arrived.set()
            return True
        return False


def _kill_workers(batches: Any) -> None:
    """Kill the workers of a loader, which ignore SIGTERM: the process would wait for them."""
    if getattr(batches, "_worker_pids_set", False):
        torch._C._remove_worker_pids(id(batches))  # else torch raises in the main thread
        batches._worker_pids_set = False
    for worker in getattr(batches, "_workers", ()):
        worker.kill()
