"""Tables of packed samples, shard by shard: offsets, sizes, checksums and names.

A table is read when an image of its shard is read: memory-mapped from a local file or from the
cache of this node, so that a process starts without the index of ten million images.
"""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lewel.data.pack.stores import Extent, Store
from lewel.data.sources.names import Names

TABLES: Final = "lewel-samples.bin"
TRIES: Final = 2  # readings whose checksum must be wrong before a table counts as damaged
ALIGNED: Final = 8  # bytes; each section begins at a multiple
ROW: Final = 16  # bytes of a sample in its table, without its name

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Samples:
    """Locations and names of the samples of a shard, or of all shards of a split."""

    offsets: npt.NDArray[np.int64]  # (N,) of the image's bytes in its shard
    sizes: npt.NDArray[Any]  # (N,)
    checksums: npt.NDArray[np.uint32]  # (N,) CRC-32 of the image's bytes

    def span(self, place: int) -> tuple[int, int]:
        """Where the bytes of a sample begin and end."""
        start = int(self.offsets[place])
        return start, start + int(self.sizes[place])

    def check(self, end: int) -> None:
        """Raise ValueError for a sample that is outside of its shard."""
        if (self.offsets < 0).any() or (self.offsets > end).any():
            raise ValueError("an image begins outside of its shard")
        if (self.sizes > end - self.offsets).any():
            raise ValueError("an image ends outside of its shard")


class Section(NamedTuple):
    """A byte range of TABLES with its checksum."""

    start: int
    end: int
    sha256: str

    @property
    def extent(self) -> Extent:
        return Extent(TABLES, self.start, self.end)


class Sections(NamedTuple):
    """Where the tables of a shard are."""

    rows: Section
    names: Section


class Tables(Protocol):
    """The samples of a split, by shard."""

    def of(self, shard: int) -> Samples:
        """The table of a shard; raises OSError."""

    def name(self, shard: int, place: int) -> str:
        """The name of a sample of a shard; raises OSError."""

    def prefetch(self, shards: Iterable[int]) -> None:
        """Fetch tables that will be read soon."""


class Joined:
    """The tables of version 1 in memory: one for all shards of a split."""

    def __init__(self, samples: Samples, names: Names, images: list[int]) -> None:
        self._samples, self._names = samples, names
        self._starts = np.concatenate([[0], np.cumsum(images)])

    def of(self, shard: int) -> Samples:
        part = slice(int(self._starts[shard]), int(self._starts[shard + 1]))
        whole = self._samples
        return Samples(whole.offsets[part], whole.sizes[part], whole.checksums[part])

    def name(self, shard: int, place: int) -> str:
        return self._names[int(self._starts[shard]) + place]

    def prefetch(self, shards: Iterable[int]) -> None:
        pass


class Mapped:
    """Tables that are read shard by shard; `ends` are the shards' sizes, `images` their counts."""

    def __init__(
        self, store: Store, sections: list[Sections], ends: list[int], images: list[int]
    ) -> None:
        self._store, self._sections, self._ends, self._images = store, sections, ends, images
        self._read: dict[int, Samples] = {}
        self._names: tuple[int, Names] | None = None  # of the shard that was asked for last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": {}, "_names": None}

    def of(self, shard: int) -> Samples:
        found = self._read.get(shard)
        if found is None:
            data = checked(self._store, self._sections[shard].rows)
            found = as_rows(data, self._images[shard])
            try:
                found.check(self._ends[shard])
            except ValueError as error:
                raise OSError(f"its part of {TABLES} is wrong: {error}") from None
            self._read[shard] = found
        return found

    def name(self, shard: int, place: int) -> str:
        if self._names is None or self._names[0] != shard:
            data = checked(self._store, self._sections[shard].names)
            self._names = shard, as_names(data, self._images[shard])
        return self._names[1][place]

    def prefetch(self, shards: Iterable[int]) -> None:
        missing = [shard for shard in shards if shard not in self._read]
        self._store.prefetch(self._sections[shard].rows.extent for shard in missing)


def checked(store: Store, section: Section) -> Bytes:
    """The bytes of a section, memory-mapped where they are on this machine; raises OSError."""
    if section.start == section.end:  # of no images: storage has no empty ranges
        return np.empty(0, np.uint8)
    for _ in range(TRIES):
        with suppress(EOFError):
            data = store.view(section.extent)
            if hashlib.sha256(data.data).hexdigest() == section.sha256:
                return data
        store.forget(section.extent)
    raise OSError(f"its part of {TABLES} is damaged")


def as_rows(data: Bytes, images: int) -> Samples:
    """The table of a shard in its bytes; raises OSError for another number of samples."""
    if len(data) != ROW * images:
        raise OSError(f"its part of {TABLES} is not that of {images:,} images")
    rest = data[8 * images :].view(np.uint32)
    return Samples(data[: 8 * images].view(np.int64), rest[:images], rest[images:])


def as_names(data: Bytes, images: int) -> Names:
    """The names of a shard in its bytes: the end of each, int64, then their characters."""
    ends = data[: 8 * images].view(np.int64)
    characters = data[8 * images :]
    rising = len(ends) == images and (np.diff(ends, prepend=0) >= 0).all()
    if not rising or (images and ends[-1] != len(characters)):
        raise OSError(f"its part of {TABLES} has no names of {images:,} images")
    return Names(characters, ends)


class TableWriter:
    """Writes sections one after the other, so that no index lies in memory as a whole."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.position = file, 0

    def shard(self, record: dict[str, Any]) -> Sections:
        """Write the table and the names of a finished shard."""
        names = Names.of(record["names"])
        kinds = (("offsets", np.int64), ("sizes", np.uint32), ("checksums", np.uint32))
        rows = b"".join(np.array(record[key], kind).tobytes() for key, kind in kinds)
        return Sections(
            self.section(rows),
            self.section(names.ends.tobytes() + names.characters.tobytes()),
        )

    def section(self, data: bytes) -> Section:
        start = self.position
        padded = data + bytes(-len(data) % ALIGNED)
        self.file.write(padded)
        self.position += len(padded)
        return Section(start, start + len(data), hashlib.sha256(data).hexdigest())


def damaged_sections(
    store: Store, sections: Iterable[Section], advance: Callable[[int], None] = lambda bytes: None
) -> int:
    """How many sections cannot be read as they were written."""
    count = 0
    for section in sections:
        try:
            checked(store, section)
        except OSError:
            count += 1
        advance(section.end - section.start)
    return count
