"""A folder of fetched blocks that all processes of a node share, with a limit of its size."""

import atexit
import fcntl
import hashlib
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lewel.data.pack.patience import is_stopped
from lewel.errors import StorageError, UserError
from lewel.files import PARTIAL, try_lock, user_path

NAME: Final = "lewel-cache"  # the folder's own subfolder: nothing else is ever deleted
LOCKS: Final = 256  # files that exclude a second fetch of the same block
KEPT: Final = 0.95  # of the limit that an eviction leaves
STALE: Final = 3600.0  # seconds after which an unfinished file was left by a killed process
TRY: Final = 0.01  # seconds between two attempts to get a lock
MEMORY: Final = "/dev/shm"
MEMORY_BYTES: Final = 2 * 2**30  # of blocks in memory, for all processes of a node
LEAST_MEMORY: Final = 512 * 2**20  # free bytes of MEMORY below which it is left alone
USES: Final = 5  # attempts to use a folder that others delete


class Key(NamedTuple):
    """A byte range of a file at a URL."""

    url: str
    file: str
    start: int
    end: int

    @property
    def path(self) -> str:
        """Its file in the folder of blocks."""
        place = hashlib.sha256(f"{self.url}/{self.file}".encode()).hexdigest()[:24]
        return f"{place}/{self.start}-{self.end}"


class Cache:
    """Blocks as files: written under another name and renamed, evicted by their last use.

    A kill leaves at most an unfinished file, which a later eviction deletes. Readers test the
    checksums of what they read; what is wrong is dropped and fetched again.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.limit = os.path.join(folder, NAME), limit
        self._make()

    def read(self, key: Key, start: int, end: int) -> bytearray | None:
        """The bytes from start to end of a block, None where it is not here."""
        path = self._path(key)
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            return None
        try:
            data = bytearray(end - start)
            whole = os.preadv(file, [data], start) == len(data)
            with suppress(OSError):
                os.utime(file)  # its last use
        finally:
            os.close(file)
        return data if whole else None

    def view(self, key: Key) -> npt.NDArray[np.uint8] | None:
        """A block as an array that all processes share, None where it is not here."""
        try:
            found = np.memmap(self._path(key), np.uint8, "c")
        except (OSError, ValueError):  # an empty file
            return None
        return found.view(np.ndarray) if len(found) == key.end - key.start else None

    def fill(self, key: Key, fetch: Callable[[], bytes]) -> bytes:
        """The bytes of a block, fetched once for all processes that ask at the same time."""
        with self._locked(key):
            data = self.read(key, 0, key.end - key.start)
            if data is not None:
                return bytes(data)
            fetched = fetch()
            with suppress(OSError):  # a full or lost disk: it works without
                self._write(key, fetched)
            return fetched

    def drop(self, key: Key) -> None:
        """Delete a block whose checksum is wrong."""
        with suppress(OSError):
            os.unlink(self._path(key))

    def holds(self, key: Key) -> bool:
        """Whether a block is here."""
        return os.path.exists(self._path(key))

    def _path(self, key: Key) -> str:
        return os.path.join(self.folder, "blocks", key.path)

    def _make(self) -> None:
        for part in ("blocks", "locks"):
            os.makedirs(os.path.join(self.folder, part), exist_ok=True)

    def _write(self, key: Key, data: bytes) -> None:
        if len(data) > self.limit:
            return
        path = self._path(key)
        self._make_room(len(data))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        number, partial = tempfile.mkstemp(PARTIAL, dir=os.path.dirname(path))
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
            os.replace(partial, path)
        except OSError:
            with suppress(OSError):
                os.unlink(partial)
            raise

    def _make_room(self, size: int) -> None:
        """Count some more bytes, and delete the blocks used longest ago where they are too many."""
        with open(os.path.join(self.folder, "bytes"), "a+b") as file:
            with suppress(OSError):  # without locks the count is wrong at times, and corrected
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = file.read(8)
            total = struct.unpack("q", known)[0] if len(known) == 8 else self.limit
            if total + size > self.limit:
                total = self._evict(self.limit - size)
            file.truncate(0)
            file.write(struct.pack("q", total + size))

    def _evict(self, limit: int) -> int:
        """Delete the blocks used longest ago if there are more bytes than that -> bytes left."""
        blocks = []
        for entry in _files(os.path.join(self.folder, "blocks")):
            with suppress(OSError):  # another process has deleted it
                found = entry.stat()
                stale = entry.name.endswith(PARTIAL) and time.time() - found.st_mtime > STALE
                blocks.append((0.0 if stale else found.st_mtime, found.st_size, entry.path))
        blocks.sort()
        total = sum(size for _, size, _ in blocks)
        target = total if total <= limit else KEPT * limit
        for used, size, path in blocks:
            if used and total <= target:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= size
        return total

    @contextmanager
    def _locked(self, key: Key) -> Iterator[None]:
        """Exclude other processes and threads that fetch this block."""
        number = int(hashlib.sha256(key.path.encode()).hexdigest(), 16) % LOCKS
        try:
            file = os.open(os.path.join(self.folder, "locks", str(number)), os.O_CREAT | os.O_RDWR)
        except OSError:  # the folder is lost: it works without
            yield
            return
        try:
            while not try_lock(file):
                if is_stopped():
                    raise StorageError(f"{key.url} was not waited for.")
                time.sleep(TRY)
            yield
        finally:
            os.close(file)


def _files(folder: str) -> Iterator["os.DirEntry[str]"]:
    with suppress(OSError), os.scandir(folder) as folders:
        for one in folders:
            with suppress(OSError), os.scandir(one.path) as entries:
                yield from entries


def open_cache(folder: str | None, limit: int) -> Cache | None:
    """The cache in a folder that a user gave; without one in memory, where there is room."""
    if folder is None:
        return _memory_cache()
    path = str(user_path(folder))
    try:
        return Cache(path, limit)
    except OSError as error:
        raise UserError(
            f"--cache {folder} cannot be used ({(error.strerror or str(error)).lower()}): give a "
            "folder on a disk of this machine."
        ) from None


_memory: Cache | None = None


def _memory_cache() -> Cache | None:
    """A cache in shared memory, deleted with the last process that uses it; None without room."""
    global _memory
    if _memory is not None and os.path.isdir(_memory.folder):
        return _memory
    folder = os.path.join(MEMORY, f"lewel-{os.getuid()}")
    try:
        _use(folder)
        room = os.statvfs(folder)
        used = sum(entry.stat().st_size for entry in _files(os.path.join(folder, NAME, "blocks")))
        free = room.f_bavail * room.f_frsize + used
        if os.lstat(folder).st_uid == os.getuid() and free >= LEAST_MEMORY:
            _memory = Cache(folder, min(MEMORY_BYTES, free // 2))
    except OSError:
        return None
    return _memory


def _use(folder: str) -> None:
    """Make a folder that is deleted at the end of the last process that uses it."""
    alive = os.path.join(folder, "alive")
    for _ in range(USES):
        with suppress(FileNotFoundError):  # another process has ended, and deletes it
            os.makedirs(folder, 0o700, exist_ok=True)
            file = os.open(alive, os.O_CREAT | os.O_RDWR)
            fcntl.flock(file, fcntl.LOCK_SH)
            if os.path.samestat(os.stat(alive), os.fstat(file)):
                _delete_at_end(folder, file)
                return
            os.close(file)
    raise FileNotFoundError(folder)


def _delete_at_end(folder: str, alive: int) -> None:
    own, held = os.getpid(), [alive]
    os.register_at_fork(after_in_child=lambda: os.close(held.pop()) if held else None)

    def end() -> None:
        if os.getpid() != own:
            return
        with suppress(OSError):
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while another one is alive
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
