"""Storage of packed data: what all kinds offer, and the local folder."""

import os
from collections import OrderedDict
from collections.abc import Iterable
from io import FileIO
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lewel.data.pack.storage import DEFAULT_STORAGE, Storage
from lewel.data.pack.urls import is_url
from lewel.files import user_path

OPEN_FILES: Final = 256  # open at once in a process; systems often allow 1024
REQUESTS: Final = 8  # to remote storage at a time, in a process


class Extent(NamedTuple):
    """A byte range of a file."""

    file: str
    start: int
    end: int


class Store(Protocol):
    """Files that are read in ranges; failures that last are OSError or EOFError.

    While storage does not answer it is waited for, up to a StorageError.
    """

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """The bytes of a sample; a store may fetch and cache the block around it."""

    def prefetch(self, blocks: Iterable[Extent]) -> None:
        """Fetch blocks that will be read soon."""

    def forget(self, block: Extent) -> None:
        """Read a block anew the next time: its checksum was wrong."""

    def view(self, extent: Extent) -> npt.NDArray[np.uint8]:
        """A range of a file, memory-mapped where it is on this machine."""

    def read_file(self, file: str) -> bytes:
        """All bytes of a small file."""

    def read_range(self, extent: Extent) -> bytes | bytearray:
        """All bytes of a range; raises EOFError where the file is shorter."""

    def size(self, file: str) -> int:
        """How many bytes a file has."""


def open_store(place: str, storage: Storage = DEFAULT_STORAGE) -> Store:
    """The store for a folder or a URL."""
    if not is_url(place):
        return Folder(place)
    from lewel.data.pack.remote import Remote  # which builds on this file

    return Remote(place, storage)


class Folder:
    """Local files, each opened once per process."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(user_path(path))
        self._open: OrderedDict[str, FileIO] = OrderedDict()
        self._maps: dict[str, npt.NDArray[np.uint8]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_open": OrderedDict(), "_maps": {}}

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """One system call, which ignores the file offset that forks share."""
        data = bytearray(sample.end - sample.start)
        if os.preadv(self._file(sample.file).fileno(), [data], sample.start) != len(data):
            raise EOFError
        return data

    def prefetch(self, blocks: Iterable[Extent]) -> None:
        pass

    def forget(self, block: Extent) -> None:
        self._maps.pop(block.file, None)

    def view(self, extent: Extent) -> npt.NDArray[np.uint8]:
        whole = self._maps.get(extent.file)
        if whole is None:
            whole = np.memmap(os.path.join(self.path, extent.file), np.uint8, "c")
            self._maps[extent.file] = whole
        if len(whole) < extent.end:
            raise EOFError
        return whole[extent.start : extent.end].view(np.ndarray)

    def read_file(self, file: str) -> bytes:
        with open(os.path.join(self.path, file), "rb") as opened:
            return opened.read()

    def read_range(self, extent: Extent) -> bytearray:
        return self.read(extent, extent)

    def size(self, file: str) -> int:
        return os.stat(os.path.join(self.path, file)).st_size

    def _file(self, name: str) -> FileIO:
        file = self._open.get(name)
        if file is None:
            while len(self._open) >= OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            file = self._open[name] = FileIO(os.path.join(self.path, name))
        return file
