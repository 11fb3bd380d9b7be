"""Shuffled order of an epoch over data stored in blocks, with nearly sequential reads."""

from math import gcd
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 32  # consecutive samples fetched by one request, about 1 MB of photographs
SPREAD: Final = 4  # steps over which the samples of a block are distributed


def block_shuffle(
    blocks: npt.NDArray[np.int32], batch_size: int, draw: np.random.Generator
) -> npt.NDArray[np.int64]:
    """All sample indices (N,) in a random order; `blocks` (N,) is the block of each sample.

    A global batch consists of lanes of up to BLOCK samples. Blocks are shuffled; each lane takes as
    many blocks as SPREAD steps need and shuffles their samples. A rank reads some of the lanes and
    so fetches only their blocks. A worker reads some of the steps and so fetches a block at most
    SPREAD times as often as necessary. The order does not depend on ranks and workers.
    """
    place = draw.permutation(int(blocks.max()) + 1)
    order = np.argsort(place[blocks], kind="stable")
    width = gcd(batch_size, BLOCK)
    full = len(order) - len(order) % (SPREAD * batch_size)
    lanes = order[:full].reshape(-1, SPREAD * width)
    steps = draw.permuted(lanes, axis=1).reshape(-1, batch_size // width, SPREAD, width)
    order[:full] = steps.swapaxes(1, 2).ravel()
    draw.shuffle(order[full:])
    return order
