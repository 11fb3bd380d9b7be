"""Finds the images below folders: several threads read them, names are kept as bytes."""

import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from lewel.data.sources.images import SUFFIXES
from lewel.errors import UserError
from lewel.progress import PLAIN_SECONDS, plain_console, rank_from_outside, show

THREADS: Final = 16  # a network file system answers many at once
END: Final = b"\0"  # of a name; no file name has it


class Found(NamedTuple):
    """What one folder holds."""

    path: str  # relative to the root
    identity: tuple[int, int]  # device and inode
    modified: int  # ns
    names: bytes  # of the images, sorted, each with an END
    folders: list[str]  # names of subfolders
    linked: list[str]  # names of links to folders
    others: Counter[str]  # suffixes of other files


class Segment(NamedTuple):
    """Images of one folder that follow one another in the order of all paths."""

    folder: str
    names: bytes


@dataclass
class Scan:
    """All images below some folders of a root."""

    count: int = 0
    folders: dict[str, Found] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)

    def segments(self) -> list[Segment]:
        """The images in the order of their paths."""
        found = [piece for folder in self.folders.values() for piece in _pieces(folder)]
        return [piece for _, piece in sorted(found, key=lambda pair: pair[0])]

    def paths(self) -> Iterator[tuple[str, bytes]]:
        """The folder and the paths, each with an END, of each segment."""
        for folder, names in self.segments():
            prefix = os.fsencode(_prefix(folder))
            yield folder, (prefix + names.replace(END, END + prefix))[: -len(prefix) or None]


def scan(root: str, folders: tuple[str, ...], grown: Callable[[int], bool] | None = None) -> Scan:
    """All images below folders of the root.

    `grown` gets their number so far, from time to time; where it is True the scan ends.
    """
    result, seen = Scan(), set[tuple[int, int]]()
    real, linked = list(folders), list[str]()
    progress = Progress(root)
    with ThreadPoolExecutor(THREADS) as pool:
        while real or linked:
            # Each folder is entered once, so loops end. Real paths come before links to them.
            batch = real or [linked.pop()]
            real = []
            for found in pool.map(lambda path: _read(root, path, progress, seen), batch):
                if found is None or found.identity in seen:
                    continue
                seen.add(found.identity)
                prefix = _prefix(found.path)
                result.folders[found.path] = found
                result.count += found.names.count(END)
                result.others += found.others
                real += [prefix + name for name in found.folders]
                linked += [prefix + name for name in found.linked]
            linked.sort(reverse=True)
            if grown is not None and grown(result.count):
                break
    return result


class Progress:
    """Prints how far a long scan has come; only the first rank prints."""

    def __init__(self, root: str) -> None:
        self.root, self.images, self.folders = root, 0, 0
        self.printed, self.lock = time.monotonic(), threading.Lock()

    def add(self, images: int) -> None:
        """One more folder, with so many images."""
        with self.lock:
            self.images, self.folders = self.images + images, self.folders + 1
            late = time.monotonic() - self.printed >= PLAIN_SECONDS
            if late and rank_from_outside() == 0:
                self.printed = time.monotonic()
                text = f"{self.images:,} images in {self.folders:,} folders so far"
                show(plain_console(stderr=True), f"reading {self.root}: {text}")


def entries(folder: str) -> list["os.DirEntry[str]"]:
    """What a folder holds, without hidden entries."""
    try:
        with os.scandir(folder) as found:
            return [e for e in found if not e.name.startswith(".") and e.name != "__MACOSX"]
    except OSError as error:
        raise _unreadable_folder(folder, error) from error


def is_(check: Callable[[], bool]) -> bool:
    """A directory entry's own check; False for a link to itself."""
    try:
        return check()
    except OSError:
        return False


def suffix_of(name: str) -> str:
    """The suffix of a file that is not hidden; os.path.splitext takes four times as long."""
    _, dot, suffix = name.rpartition(".")
    return f".{suffix.lower()}" if dot else ""


def modified(root: str, folder: str) -> int:
    """When an entry of a folder was last added or removed, ns; raises OSError."""
    return os.stat(os.path.join(root, folder) if folder else root).st_mtime_ns


def _read(root: str, path: str, progress: Progress, seen: set[tuple[int, int]]) -> Found | None:
    """What a folder holds; None where it was read before."""
    full = os.path.join(root, path) if path else root
    try:
        status = os.stat(full)
    except OSError as error:
        raise _unreadable_folder(full, error) from error
    if (identity := (status.st_dev, status.st_ino)) in seen:
        return None
    names: list[str] = []
    folders: list[str] = []
    linked: list[str] = []
    others: Counter[str] = Counter()
    for entry in entries(full):
        name = entry.name
        if is_(entry.is_dir):
            (linked if entry.is_symlink() else folders).append(name)
        elif (suffix := suffix_of(name)) not in SUFFIXES:
            others[suffix] += 1
        elif is_(entry.is_file):  # not a broken link, a pipe or a device
            names.append(name)
    names.sort()  # the order of a directory listing is arbitrary
    joined = b"".join([os.fsencode("\0".join(names)), END]) if names else b""
    progress.add(len(names))
    return Found(path, identity, status.st_mtime_ns, joined, folders, linked, others)


def _pieces(folder: Found) -> Iterator[tuple[str, Segment]]:
    """The images of a folder, apart where the paths of a subfolder come between them.

    Each with its first path.
    """
    if not folder.names:
        return
    prefix = _prefix(folder.path)
    subfolders = [name + "/" for name in (*folder.folders, *folder.linked)]
    if not subfolders:
        first = os.fsdecode(folder.names[: folder.names.index(END)])
        yield prefix + first, Segment(folder.path, folder.names)
        return
    names = os.fsdecode(folder.names[:-1]).split("\0")
    cuts = sorted({0, len(names), *(bisect_left(names, name) for name in subfolders)})
    for start, end in pairwise(cuts):
        joined = os.fsencode("\0".join(names[start:end])) + END
        yield prefix + names[start], Segment(folder.path, joined)


def _prefix(folder: str) -> str:
    return folder + "/" if folder else ""


def _unreadable_folder(folder: str, error: OSError) -> UserError:
    reason = (error.strerror or type(error).__name__).lower()
    return UserError(f"Cannot read the folder {folder} ({reason}): make it readable or move it.")
