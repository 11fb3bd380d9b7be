"""How fast a run will be: reading and augmenting images, measured, beside a training step."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch

from lewel.data.views.blocks import BLOCK

TRIAL, ENOUGH = 24, 3.0  # images that are read, and seconds after which no more are
PACK = 2.0  # reading of so many times a training step is worth a hint


class Readable(Protocol):
    """A data set of views by (epoch, index)."""

    def __getitems__(self, places: list[tuple[int, int]]) -> object:
        """The views of some images."""


def reading_seconds(
    dataset: Readable, images: int, remote: bool, clock: Callable[[], float] = time.monotonic
) -> float:
    """Seconds in which one process reads and augments an image, of some from all of the data.

    From remote storage neighbours are read at once, as in training: two blocks, of which no image
    was read before.
    """
    indices: Iterable[int] = np.unique(np.linspace(0, images - 1, TRIAL).astype(int)).tolist()
    first, *others = indices
    dataset.__getitems__([(0, first)])  # imports, and opens files
    begun, done = clock(), 0
    if remote:
        middle = images * 43 // 126  # between two of the 64 images whose size was looked at
        blocks = range(middle, min(middle + 2 * BLOCK, images))
        dataset.__getitems__([(0, index) for index in blocks])
        return (clock() - begun) / len(blocks)
    for index in others or [first]:
        dataset.__getitems__([(0, index)])
        done += 1
        if clock() - begun > ENOUGH:
            break
    return (clock() - begun) / done


@contextmanager
def threads_of_rank(ranks: int, cores: int) -> Iterator[None]:
    """As many threads inside as each of several processes on this machine has."""
    before = torch.get_num_threads()
    if ranks > 1:
        torch.set_num_threads(max(1, min(before, cores)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_together(
    training: float, reading: float, device: torch.device, workers: int, cores: int
) -> float:
    """Seconds for an image, of training and of one process's reading."""
    if not workers:  # one after the other
        return training + reading
    if device.type == "cpu":  # workers take cores from the training
        return training + reading / cores
    return max(training, reading / workers)
