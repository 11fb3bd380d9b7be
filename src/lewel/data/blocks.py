"""The order of an epoch over data that is stored in blocks: shuffled, yet read nearly in line."""

from math import gcd
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 32  # samples that lie together and are fetched at once, about 1 MB of photographs
SPREAD: Final = 4  # steps over which the samples of a block are dealt out


def block_shuffle(
    blocks: npt.NDArray[np.int32], batch_size: int, draw: np.random.Generator
) -> npt.NDArray[np.int64]:
    """All sample indices (N,) in a random order; `blocks` (N,) is the block of each sample.

    A global batch is a row of lanes of up to BLOCK samples. Blocks come in a random order; each
    lane takes as many of them as SPREAD steps need and shuffles their samples. So a rank, which
    takes some of the lanes, fetches only their blocks, and a worker, which takes some of the
    steps, fetches a block at most SPREAD times as often as it must: whatever ranks and workers
    there are, the order is the same.
    """
    place = draw.permutation(int(blocks.max()) + 1)
    order = np.argsort(place[blocks], kind="stable")
    width = gcd(batch_size, BLOCK)
    whole = len(order) - len(order) % (SPREAD * batch_size)
    lanes = order[:whole].reshape(-1, SPREAD * width)
    steps = draw.permuted(lanes, axis=1).reshape(-1, batch_size // width, SPREAD, width)
    order[:whole] = steps.swapaxes(1, 2).ravel()
    draw.shuffle(order[whole:])
    return order
