"""The list of a large folder's images: written once, then mapped by every process that reads it."""

import fcntl
import hashlib
import json
import mmap
import os
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lewel.data.sources.names import Names
from lewel.data.sources.scan import END, THREADS, Scan, modified, scan
from lewel.files import write_atomically

LISTED_FROM: Final = 100_000  # images: fewer are found again faster than a list is checked
PLACE, SUFFIX = ".file-lists", ".files"
BEGAN: Final = time.time()
FORMAT: Final = b"lewel-files-1"  # the last bytes of a list
SETTLED: Final = 2_000_000_000  # ns: a folder that was changed just now may change unnoticed


class Images(NamedTuple):
    """The images of a folder in the order of their paths."""

    names: Names
    groups: tuple[str, ...]  # first folders of the paths, "" for none; sorted
    labels: npt.NDArray[np.int64]  # the group of each image
    digest: str  # as `source.digest` of all images
    file: Path | None  # the list that names and labels are mapped from


class Lists(NamedTuple):
    """Where lists of large folders are kept."""

    place: Path

    @classmethod
    def beside(cls, run: Path | None) -> "Lists":
        """The lists that all runs of a folder share; of runs/ where it is not known."""
        return cls((Path("runs") if run is None else run.absolute().parent) / PLACE)

    def file(self, root: str, folders: tuple[str, ...]) -> Path:
        """The list of some folders of a root."""
        return self.place / f"{_key(os.path.abspath(root))}-{_key(json.dumps(folders))}{SUFFIX}"

    def forget(self, root: str) -> None:
        """Delete the lists of a root that were written before this process began."""
        for file in self.place.glob(f"{_key(os.path.abspath(root))}-*{SUFFIX}"):
            with suppress(OSError):
                if file.stat().st_mtime < BEGAN:  # later ones are another rank's
                    file.unlink()


def find_images(root: str, folders: tuple[str, ...], lists: Lists | None) -> Images:
    """All images below folders of the root.

    Those of a large folder are taken from its list, unless a folder has changed since. Where there
    is none, one process scans and writes it, and the others on its file system wait.
    """
    if lists is None:
        return _in_memory(scan(root, folders), folders)
    file, began = lists.file(root, folders), time.time()
    known = read_list(file, root)
    with ExitStack() as held:

        def grown(count: int) -> bool:
            nonlocal known
            if count < LISTED_FROM or held_already:
                return False
            held_already.append(True)
            held.enter_context(_locked(file))
            known = read_list(file, root)  # another process may have written it meanwhile
            return known is not None

        held_already: list[bool] = []
        if known is None:
            found = scan(root, folders, grown)
        if known is None and found.count >= LISTED_FROM:
            with suppress(OSError):  # a full or read-only disk: every process has its own names
                write_atomically(file, lambda aside: _write(aside, found, folders, began))
                known = read_list(file, root, checked=False)
        return known or _in_memory(found, folders)


def read_list(file: Path, root: str, checked: bool = True) -> Images | None:
    """The images of a list; None where there is none, or where a folder has changed."""
    try:
        with file.open("rb") as opened:
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        end = len(content) - len(FORMAT) - 8
        if end < 0 or content[end + 8 :] != FORMAT:
            return None
        (size,) = struct.unpack("<Q", content[end : end + 8])
        about: dict[str, Any] = json.loads(content[end - size : end])
    except (OSError, ValueError):  # missing, empty or damaged
        return None
    if checked and not _unchanged(root, about["modified"]):
        return None
    images, place = about["images"], about["numbers"]
    names = np.frombuffer(content, np.uint8, about["characters"])
    ends = np.frombuffer(content, np.int64, images, place)
    labels = np.frombuffer(content, np.int64, images, place + 8 * images)
    return Images(Names(names, ends), tuple(about["groups"]), labels, about["digest"], file)


def _unchanged(root: str, times: dict[str, int]) -> bool:
    """Whether all folders have the times that they had."""

    def same(item: tuple[str, int]) -> bool:
        try:
            return modified(root, item[0]) == item[1]
        except OSError:
            return False

    with ThreadPoolExecutor(THREADS) as pool:
        return all(pool.map(same, times.items(), chunksize=64))


def _in_memory(found: Scan, folders: tuple[str, ...]) -> Images:
    file = BytesIO()
    ends, groups, labels, digest = _write_names(file, found, folders)
    names = Names(np.frombuffer(file.getvalue(), np.uint8), ends)
    return Images(names, groups, labels, digest, None)


def _write(aside: Path, found: Scan, folders: tuple[str, ...], began: float) -> None:
    """Write a list: characters, ends, labels, the rest as JSON with its size, and FORMAT."""
    with aside.open("wb") as file:
        ends, groups, labels, digest = _write_names(file, found, folders)
        characters = file.tell()
        file.write(bytes(-characters % 8))
        numbers = file.tell()
        ends.tofile(file)
        labels.tofile(file)
        recent = began * 1e9 - SETTLED
        times = {path: one.modified for path, one in found.folders.items()}
        about = {
            "images": len(ends),
            "characters": characters,
            "numbers": numbers,
            "groups": groups,
            "digest": digest,
            "modified": {path: when if when < recent else -1 for path, when in times.items()},
        }
        text = json.dumps(about).encode()
        file.write(text + struct.pack("<Q", len(text)) + FORMAT)


def _write_names(
    file: BinaryIO, found: Scan, folders: tuple[str, ...]
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], npt.NDArray[np.int64], str]:
    """Write all paths -> their ends, the groups, the labels, the digest."""
    state, place, done = hashlib.sha256(), 0, 0
    depth = len(folders[0]) + 1 if folders[0] else 0
    firsts, counts = list[str](), list[int]()
    ends = np.empty(found.count, np.int64)
    for folder, paths in found.paths():
        state.update(paths)
        marks = np.flatnonzero(np.frombuffer(paths, np.uint8) == END[0])
        count = len(marks)
        ends[done : done + count] = place + marks - np.arange(count)
        file.write(paths.replace(END, b""))
        place, done = place + len(paths) - count, done + count
        firsts.append(folder[depth:].partition("/")[0])
        counts.append(count)
    groups = tuple(sorted(set(firsts)))
    index = {group: number for number, group in enumerate(groups)}
    labels = np.repeat(np.array([index[first] for first in firsts], np.int64), counts)
    return ends, groups, labels, state.hexdigest()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """An exclusive lock on a list; none where the place cannot be written or has no locks."""
    with ExitStack() as held:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            opened = held.enter_context(file.with_suffix(".lock").open("w"))
            fcntl.lockf(opened, fcntl.LOCK_EX)
        yield


def _key(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
