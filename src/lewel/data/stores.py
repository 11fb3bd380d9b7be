"""Where the shards of packed data lie: in a folder, or behind a URL."""

import os
import time
from collections import OrderedDict
from importlib.util import find_spec
from io import FileIO
from typing import Any, Final, NamedTuple, Protocol

from lewel.errors import UserError

OPEN_FILES: Final = 256  # kept open by a process; systems often allow 1024
CACHE_BYTES: Final = 256 * 2**20  # of fetched blocks, in each process
WAITS: Final = (0.5, 2.0)  # seconds before a request that failed is tried again


class Extent(NamedTuple):
    """A part of a file, from one byte up to another."""

    file: str
    start: int
    end: int


class Store(Protocol):
    """Files that are read in parts; what cannot be read is an OSError or an EOFError."""

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """The bytes of a sample, which lies in a block that may be fetched as a whole."""

    def whole(self, file: str) -> bytes:
        """All bytes of a small file."""

    def part(self, extent: Extent) -> bytes | bytearray:
        """Some bytes of a file; fewer at its end."""

    def size(self, file: str) -> int:
        """How many bytes a file has."""


def open_store(place: str) -> Store:
    """The store for a folder or a URL."""
    return Remote(place) if "://" in place else Folder(place)


class Folder:
    """Files on a disk, each opened once in a process."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        self._open: OrderedDict[str, FileIO] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_open": OrderedDict()}

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """One call to the system; the position of the file, which forks share, is not used."""
        data = bytearray(sample.end - sample.start)
        if os.preadv(self._file(sample.file).fileno(), [data], sample.start) != len(data):
            raise EOFError
        return data

    def whole(self, file: str) -> bytes:
        with open(os.path.join(self.path, file), "rb") as opened:
            return opened.read()

    def part(self, extent: Extent) -> bytes:
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
    """Files behind a URL of any kind that fsspec knows; a block is one request, and is kept."""

    def __init__(self, url: str) -> None:
        if find_spec("fsspec") is None:
            raise UserError(f"{url} is read by fsspec: pip install 'lewel[remote]'.")
        self.url = url.rstrip("/")
        self._forget()
        self._connect()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.url = state["url"]
        self._forget()

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """A slice of the block that holds the sample."""
        data = self._blocks.get(block)
        if data is None:
            data = self._fetch(block)
            self._blocks[block] = data
            self._held += len(data)
            while self._held > CACHE_BYTES and len(self._blocks) > 1:
                self._held -= len(self._blocks.popitem(last=False)[1])
        else:
            self._blocks.move_to_end(block)
        return bytearray(data[sample.start - block.start : sample.end - block.start])

    def whole(self, file: str) -> bytes:
        data: bytes = self._ask("cat_file", file)
        return data

    def part(self, extent: Extent) -> bytes:
        data: bytes = self._ask("cat_file", extent.file, start=extent.start, end=extent.end)
        return data

    def size(self, file: str) -> int:
        return int(self._ask("info", file)["size"])

    def _ask(self, what: str, file: str, **options: int) -> Any:
        """A call of fsspec's; whatever its back ends raise, an OSError."""
        files = self._connect()
        try:
            return getattr(files, what)(f"{self._root}/{file}", **options)
        except OSError:
            raise
        except Exception as error:
            raise OSError(str(error) or type(error).__name__) from error

    def _fetch(self, block: Extent) -> bytes:
        """One request, repeated after a pause where that may help."""
        if block.file in self._failed:
            raise OSError(self._failed[block.file])
        for wait in (*WAITS, None):
            try:
                data = self.part(block)
            except FileNotFoundError:
                raise
            except OSError as error:
                if wait is None:
                    # Thousands of samples are not worth waiting for one by one.
                    self._failed[block.file] = str(error) or type(error).__name__
                    raise OSError(self._failed[block.file]) from error
                time.sleep(wait)
            else:
                if len(data) != block.end - block.start:
                    raise EOFError
                return data
        raise AssertionError

    def _forget(self) -> None:
        self._blocks: OrderedDict[Extent, bytes] = OrderedDict()
        self._held = 0
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
                raise UserError(f"{self.url} is no URL that fsspec knows ({error}).") from error
            self._process = os.getpid()
        return self._files
