"""Storage of packed data: a folder or a URL."""

import os
import time
from collections import OrderedDict
from importlib.util import find_spec
from io import FileIO
from typing import Any, Final, NamedTuple, Protocol

from lewel.errors import UserError
from lewel.files import user_path

OPEN_FILES: Final = 256  # open at once in a process; systems often allow 1024
CACHE_BYTES: Final = 256 * 2**20  # of fetched blocks, in each process
WAITS: Final = (0.5, 2.0)  # seconds before a failed request is repeated


class Extent(NamedTuple):
    """A byte range of a file."""

    file: str
    start: int
    end: int


class Store(Protocol):
    """Files that are read in ranges; failures are OSError or EOFError."""

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """The bytes of a sample; a store may fetch and cache the block around it."""

    def read_file(self, file: str) -> bytes:
        """All bytes of a small file."""

    def read_range(self, extent: Extent) -> bytes | bytearray:
        """A range of a file; shorter at its end."""

    def size(self, file: str) -> int:
        """How many bytes a file has."""


def open_store(place: str) -> Store:
    """The store for a folder or a URL."""
    return Remote(place) if "://" in place else Folder(place)


class Folder:
    """Local files, each opened once per process."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(user_path(path))
        self._open: OrderedDict[str, FileIO] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_open": OrderedDict()}

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """One system call, which ignores the file offset that forks share."""
        data = bytearray(sample.end - sample.start)
        if os.preadv(self._file(sample.file).fileno(), [data], sample.start) != len(data):
            raise EOFError
        return data

    def read_file(self, file: str) -> bytes:
        with open(os.path.join(self.path, file), "rb") as opened:
            return opened.read()

    def read_range(self, extent: Extent) -> bytes:
        return os.pread(self._file(extent.file).fileno(), extent.end - extent.start, extent.start)

    def size(self, file: str) -> int:
        return os.stat(os.path.join(self.path, file)).st_size

    def _file(self, name: str) -> FileIO:
        file = self._open.get(name)
        if file is None:
            while len(self._open) >= OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            file = self._open[name] = FileIO(os.path.join(self.path, name))
        return file


class Remote:
    """Files at a URL that fsspec supports; a block is one request, and is cached."""

    def __init__(self, url: str) -> None:
        if find_spec("fsspec") is None:
            raise UserError(f"{url} is read by fsspec: pip install 'lewel[remote]'.")
        self.url = url.rstrip("/")
        self._reset()
        self._connect()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.url = state["url"]
        self._reset()

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """A slice of the block that holds the sample."""
        data = self._blocks.get(block)
        if data is None:
            data = self._fetch(block)
            self._blocks[block] = data
            self._cached_bytes += len(data)
            while self._cached_bytes > CACHE_BYTES and len(self._blocks) > 1:
                self._cached_bytes -= len(self._blocks.popitem(last=False)[1])
        else:
            self._blocks.move_to_end(block)
        return bytearray(data[sample.start - block.start : sample.end - block.start])

    def read_file(self, file: str) -> bytes:
        data: bytes = self._call("cat_file", file)
        return data

    def read_range(self, extent: Extent) -> bytes:
        data: bytes = self._call("cat_file", extent.file, start=extent.start, end=extent.end)
        return data

    def size(self, file: str) -> int:
        return int(self._call("info", file)["size"])

    def _call(self, method: str, file: str, **options: int) -> Any:
        """Call fsspec; any exception of its back ends becomes an OSError."""
        files = self._connect()
        try:
            return getattr(files, method)(f"{self._root}/{file}", **options)
        except OSError:
            raise
        except Exception as error:
            raise OSError(str(error) or type(error).__name__) from error

    def _fetch(self, block: Extent) -> bytes:
        """One request, repeated after a pause if it failed."""
        if block.file in self._failed:
            raise OSError(self._failed[block.file])
        for wait in (*WAITS, None):
            try:
                data = self.read_range(block)
            except FileNotFoundError:
                raise
            except OSError as error:
                if wait is None:
                    # Fail at once for the other samples of this file.
                    self._failed[block.file] = str(error) or type(error).__name__
                    raise OSError(self._failed[block.file]) from error
                time.sleep(wait)
            else:
                if len(data) != block.end - block.start:
                    raise EOFError
                return data
        raise AssertionError

    def _reset(self) -> None:
        self._blocks: OrderedDict[Extent, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._failed: dict[str, str] = {}
        self._process: int | None = None

    def _connect(self) -> Any:
        """The file system of this process: connections do not survive a fork."""
        if self._process != os.getpid():
            from fsspec.core import url_to_fs

            try:
                self._files, self._root = url_to_fs(self.url)
            except ImportError as error:
                raise UserError(f"{self.url} cannot be opened: {error}.") from error
            except ValueError as error:
                raise UserError(f"{self.url} is not supported by fsspec ({error}).") from error
            self._process = os.getpid()
        return self._files
