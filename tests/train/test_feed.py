"""Batches that a thread fetches: counted, in order, and ended in time."""

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lewel.data.workers import leave_signals_to_the_parent
from lewel.errors import StorageError
from lewel.train import feed as feeding
from lewel.train.feed import Feed


class Numbers(Dataset[int]):
    """Numbers that arrive late, or not at all."""

    def __init__(self, late: float = 0.0, lost: int = 1000) -> None:
        self.late, self.lost = late, lost

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        time.sleep(self.late)
        if index >= self.lost:
            raise StorageError("the storage is away")
        return index


def loader(workers: int, **options: Any) -> DataLoader[int]:
    return DataLoader(
        Numbers(**options),
        batch_size=2,
        num_workers=workers,
        worker_init_fn=leave_signals_to_the_parent,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_and_are_counted(workers: int) -> None:
    feed = Feed(loader(workers), 2)
    while feed.ready < 2:
        feed.wait(0.1)
    assert torch.cat(list(feed)).tolist() == list(range(12))
    assert feed.ready == 0 and feed.error is None
    feed.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_counts_only_after_the_batches_before_it(workers: int) -> None:
    feed = Feed(loader(workers, lost=4), 4)
    while feed.error is None or feed.ready < 2:
        feed.wait(0.1)
    batches = iter(feed)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    assert feed.ready == 0
    with pytest.raises(StorageError, match=r"^the storage is away$"):  # also from a worker
        next(batches)
    feed.close()


def test_workers_that_hang_do_not_keep_a_run_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "JOIN", 0.3)
    feed = Feed(loader(2, late=300.0), 2)
    time.sleep(0.5)
    workers, before = feed._batches._workers, time.monotonic()
    feed.close()
    for worker in workers:
        worker.join(10)
        assert worker.exitcode == -9
    assert time.monotonic() - before < 20
