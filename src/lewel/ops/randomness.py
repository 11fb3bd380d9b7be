"""Randomness as a pure function of a key, so that a draw never depends on what was drawn before."""

import numpy as np


def generator(*key: int) -> np.random.Generator:
    """A generator whose whole stream is decided by the key, e.g. (seed, epoch, index, view)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def seed_of(*key: int) -> int:
    """One 63-bit seed decided by the key, for torch's own generators."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
