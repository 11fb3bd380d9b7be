"""Shuffled order of an epoch over data stored in blocks, with nearly sequential reads."""

from math import gcd
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 32  # consecutive samples fetched by one request, about 1 MB of photographs
SPREAD: Final = 4  # steps over which the samples of a block are distributed

Indices = npt.NDArray[Any]  # of integers


def block_shuffle(
    blocks: npt.NDArray[np.int32], batch_size: int, draw: np.random.Generator
) -> Indices:
    """All sample indices (N,) in a random order; `blocks` (N,) is the block of each sample.

    A global batch consists of lanes of up to BLOCK samples. Blocks are shuffled; each lane takes as
    many blocks as SPREAD steps need and shuffles their samples. A rank reads some of the lanes and
    so fetches only their blocks. A worker reads some of the steps and so fetches a block at most
    SPREAD times as often as necessary. The order does not depend on ranks and workers.
    """
    order = _by_block(blocks, draw.permutation(int(blocks.max()) + 1))
    width = gcd(batch_size, BLOCK)
    full = len(order) - len(order) % (SPREAD * batch_size)
    lanes = order[:full].reshape(-1, SPREAD * width)
    draw.permuted(lanes, axis=1, out=lanes)
    steps = lanes.reshape(-1, batch_size // width, SPREAD, width)
    order[:full] = steps.swapaxes(1, 2).ravel()
    draw.shuffle(order[full:])
    return order


def _by_block(blocks: npt.NDArray[np.int32], place: npt.NDArray[np.int64]) -> Indices:
    """The samples block after block, where block b comes at place[b]."""
    kind = np.int32 if len(blocks) < 2**31 else np.int64  # half of the memory of ten million
    if len(blocks) > 1 and (blocks[1:] < blocks[:-1]).any():
        return np.argsort(place[blocks], kind="stable").astype(kind)
    counts = np.bincount(blocks, minlength=len(place))
    starts = np.cumsum(counts) - counts
    shuffled = np.argsort(place)
    lengths = counts[shuffled]
    shift = starts[shuffled] - (np.cumsum(lengths) - lengths)
    order: Indices = np.arange(len(blocks), dtype=kind)
    order += np.repeat(shift.astype(kind), lengths)
    return order
