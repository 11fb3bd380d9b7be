"""Randomness as a pure function of a key: no draw depends on earlier draws."""

import numpy as np


def generator(*key: int) -> np.random.Generator:
    """A generator seeded by a key, e.g. (seed, epoch, index, view)."""
    # numpy takes ten times as long for a tuple as for an array, which gives the same seed.
    words = np.array(key, np.uint32) if max(key) < 2**32 else key
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def seed_of(*key: int) -> int:
    """A 63-bit seed from a key, for torch's generators."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def permutation(draw: np.random.Generator, count: int) -> np.ndarray:
    """The same order as draw.permutation(count), in half of the memory where 32 bits suffice."""
    order = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
    draw.shuffle(order)
    return order
