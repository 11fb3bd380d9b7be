"""Packed data at a URL: byte ranges by fsspec, in blocks that are cached."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from lewel.data.pack.cache import Key, open_cache
from lewel.data.pack.patience import answered, as_os_error, resolved
from lewel.data.pack.storage import Storage
from lewel.data.pack.stores import REQUESTS, Extent
from lewel.data.pack.urls import shown, split_query, without_secrets
from lewel.errors import UserError

CACHE_BYTES: Final = 256 * 2**20  # of fetched blocks, in each process
STALLED: Final = 30.0  # seconds without a byte after which a connection counts as lost
Answer = TypeVar("Answer")


class Blocks:
    """The blocks that one process has used last, where the node has no cache; for all threads."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Extent, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, block: Extent) -> bool:
        return block in self._blocks

    def get(self, block: Extent) -> bytes | None:
        with self._lock:
            if block in self._blocks:
                self._blocks.move_to_end(block)
            return self._blocks.get(block)

    def put(self, block: Extent, data: bytes) -> None:
        with self._lock:
            self._blocks[block] = data
            while sum(map(len, self._blocks.values())) > CACHE_BYTES and len(self._blocks) > 1:
                self._blocks.popitem(last=False)

    def pop(self, block: Extent) -> None:
        with self._lock:
            self._blocks.pop(block, None)


class Remote:
    """Files at a URL that fsspec supports; a block is one request, and is cached."""

    def __init__(self, url: str, storage: Storage) -> None:
        if find_spec("fsspec") is None:
            raise UserError(f"{shown(url)} is read by fsspec: pip install 'lewel[remote]'.")
        self.url, self.storage = url.rstrip("/"), storage
        self._reset()
        try:
            answered(self._connect, shown(url), storage.timeout, sends=False)
        except OSError as error:
            raise UserError(f"{shown(url)} cannot be opened ({error}).") from None

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "storage": self.storage}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._reset()
        resolved(shown(self.url))

    def read(self, sample: Extent, block: Extent) -> bytearray:
        """A slice of the block that holds the sample."""
        start, end = sample.start - block.start, sample.end - block.start
        if self._cache is not None:
            found = self._cache.read(self._key(block), start, end)
            if found is not None:
                return found
        return bytearray(self._block(block)[start:end])

    def prefetch(self, blocks: Iterable[Extent]) -> None:
        """Fetch missing blocks, several at a time; failures that last show where they are read."""

        def fetch(block: Extent) -> None:
            with suppress(OSError, EOFError):
                self._block(block)

        missing = [block for block in blocks if not self._holds(block)]
        if len(missing) > 1:
            with ThreadPoolExecutor(min(REQUESTS, len(missing))) as threads:
                list(threads.map(fetch, missing))

    def forget(self, block: Extent) -> None:
        self._blocks.pop(block)
        if self._cache is not None:
            self._cache.drop(self._key(block))

    def view(self, extent: Extent) -> npt.NDArray[np.uint8]:
        if self._cache is not None:
            found = self._cache.view(self._key(extent))
            if found is not None:
                return found
        data = self._block(extent)
        found = None if self._cache is None else self._cache.view(self._key(extent))
        return np.frombuffer(bytearray(data), np.uint8) if found is None else found

    def _holds(self, block: Extent) -> bool:
        cached = self._cache is not None and self._cache.holds(self._key(block))
        return cached or block in self._blocks

    def _block(self, block: Extent) -> bytes:
        """All bytes of a block, from the cache of this node or of this process, or fetched."""
        data = self._blocks.get(block)
        if data is not None:
            return data
        if self._cache is None:
            data = self.read_range(block)
        else:
            data = self._cache.fill(self._key(block), lambda: self.read_range(block))
        if not self._holds(block):  # no cache, or a full disk
            self._blocks.put(block, data)
        return data

    def _key(self, block: Extent) -> Key:
        return Key(self.url, *block)

    def read_file(self, file: str) -> bytes:
        return self.ask(lambda files, path: bytes(files.cat_file(path)), file)

    def read_range(self, extent: Extent) -> bytes:
        """One request, repeated while storage does not answer or answers with fewer bytes."""

        def request() -> bytes:
            data = self._once(
                lambda files, path: bytes(files.cat_file(path, start=extent.start, end=extent.end)),
                extent.file,
            )
            if len(data) > extent.end - extent.start:
                raise UserError(
                    f"{shown(self.url)} sends whole files instead of byte ranges: use a server "
                    "that answers range requests, or copy the data."
                )
            if len(data) != extent.end - extent.start:
                if self._once(_size, extent.file) < extent.end:
                    raise EOFError
                raise OSError(f"{len(data):,} of {extent.end - extent.start:,} bytes were sent")
            return data

        return answered(request, shown(self.url), self.storage.timeout)

    def size(self, file: str) -> int:
        return self.ask(_size, file)

    def ask(self, request: Callable[[Any, str], Answer], file: str = "") -> Answer:
        """The answer to a request, which gets fsspec's file system and the path of a file.

        It is repeated while storage does not answer.
        """
        place, minutes = shown(self.url), self.storage.timeout
        return answered(lambda: self._once(request, file), place, minutes)

    def _once(self, request: Callable[[Any, str], Answer], file: str) -> Answer:
        """Ask once; any exception of fsspec's back ends becomes an OSError."""
        files = self._connect()
        root, query = split_query(self._root)
        path = f"{root.rstrip('/')}/{file}" if file else root
        try:
            return request(files, f"{path}?{query}" if query else path)
        except Exception as error:
            raise as_os_error(error, self.url) from error

    def _reset(self) -> None:
        self._blocks = Blocks()
        self._cache = open_cache(self.storage.cache, self.storage.cache_bytes)
        self._process: int | None = None

    def _connect(self) -> Any:
        """The file system of this process: connections do not survive a fork."""
        if self._process != os.getpid():
            from fsspec.core import url_to_fs

            try:
                self._files, self._root = url_to_fs(self.url, **_limits(self.url))
            except ImportError as error:
                raise UserError(f"{shown(self.url)} cannot be opened: {error}.") from None
            except ValueError as error:
                reason = without_secrets(str(error), self.url)
                raise UserError(
                    f"{shown(self.url)} is not supported by fsspec ({reason})."
                ) from None
            except Exception as error:  # some back ends connect at once
                raise as_os_error(error, self.url) from error
            self._process = os.getpid()
        return self._files


def _size(files: Any, path: str) -> int:
    """How many bytes a file has; 0 where storage does not say."""
    try:
        return int(files.info(path)["size"] or 0)
    except FileNotFoundError as error:  # fsspec's name for any failure over HTTP
        files.cat_file(path, start=0, end=1)  # tells a missing file from an outage
        raise OSError("its size was not sent") from error


def _limits(url: str) -> dict[str, Any]:
    """Options by which a server that stops sending counts as an outage; fsspec waits 5 minutes."""
    if url.partition("://")[0] not in ("http", "https"):
        return {}
    from aiohttp import ClientTimeout

    limits = ClientTimeout(total=None, sock_connect=STALLED, sock_read=STALLED)
    return {"client_kwargs": {"timeout": limits}}
