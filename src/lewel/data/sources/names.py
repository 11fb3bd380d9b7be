"""Compact storage of many paths."""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Names:
    """Paths as two arrays: their characters, uint8, and the end of each, int64 (N,).

    Not a list: a forked worker that reads a list of strings changes their reference counts, and so
    copies the whole list into its own memory.
    """

    def __init__(self, characters: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> None:
        self.characters, self.ends = characters, ends

    @classmethod
    def of(cls, names: Sequence[str]) -> "Names":
        """The names of a list."""
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self.ends[index - 1] if index else 0
        return os.fsdecode(self.characters[start : self.ends[index]].tobytes())
