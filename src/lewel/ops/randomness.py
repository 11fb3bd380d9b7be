"""Randomness as a pure function of a key: no draw depends on earlier draws."""

import numpy as np


def generator(*key: int) -> np.random.Generator:
    """A generator seeded by a key, e.g. (seed, epoch, index, view)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def seed_of(*key: int) -> int:
    """A 63-bit seed from a key, for torch's generators."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
