"""Packed data as sources: one read per image, from local or remote shards."""

import hashlib
import os
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from lewel.data.pack.format import (
    INDEX,
    MANIFEST,
    TRAIN,
    UNLABELLED,
    VAL,
    Index,
    Samples,
    Shard,
    read_index,
)
from lewel.data.pack.stores import Extent, Folder, Store, open_store
from lewel.data.sources.images import UnreadableImage, decode_image
from lewel.data.views.blocks import BLOCK
from lewel.errors import UserError

SHOWN: Final = 3  # shards that a message names


class Packed:
    """A source over one split of packed data; the images are in storage order."""

    def __init__(
        self,
        store: Store,
        shards: list[Shard],
        samples: Samples,
        *,
        name: str,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.name = name
        self.classes, self.labels = classes, samples.labels
        self.fingerprint = hashlib.sha256("".join(s.sha256 for s in shards).encode()).hexdigest()
        self._store, self._samples = store, samples
        self._files = [shard.file for shard in shards]
        counts = np.array([shard.images for shard in shards], np.int64)
        self._shard_of = np.repeat(np.arange(len(shards), dtype=np.int32), counts)
        # A block ends with its shard, so that one request fetches it.
        within = np.arange(len(self)) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = within % BLOCK == 0
        self.blocks: npt.NDArray[np.int32] = np.cumsum(begins, dtype=np.int32) - 1
        self._begins = np.append(np.flatnonzero(begins), len(self))

    def __len__(self) -> int:
        return len(self._samples.offsets)

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return decode_image(self.load(index))

    def load(self, index: int) -> bytearray:
        """The image's bytes as they were packed; raises UnreadableImage, which names the shard."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        file, block = self._files[self._shard_of[index]], int(self.blocks[index])
        first, last = int(self._begins[block]), int(self._begins[block + 1]) - 1
        start, _ = self._span(first)
        _, end = self._span(last)
        try:
            data = self._store.read(Extent(file, *self._span(index)), Extent(file, start, end))
        except EOFError as error:
            raise UnreadableImage(f"{file} is truncated") from error
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise UnreadableImage(f"{file} cannot be read ({reason})") from error
        if zlib.crc32(data) != self._samples.checksums[index]:
            raise UnreadableImage(f"{file} is damaged")
        return data

    def describe(self, index: int) -> str:
        """The original path of the image."""
        return self._samples.names[index]

    def _span(self, index: int) -> tuple[int, int]:
        start = int(self._samples.offsets[index])
        return start, start + int(self._samples.sizes[index])


def is_packed(path: str) -> bool:
    """Whether a folder holds packed data, complete or not."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (INDEX, MANIFEST))


def open_packed(place: str, notes: list[str]) -> tuple[Packed | None, Packed, Packed | None]:
    """Images only for pre-training, if there are any; all others; the validation set."""
    store = open_store(place)
    index = read_index(store, place)
    name = os.path.basename(place.rstrip("/").rpartition("://")[2]) or index.name
    if isinstance(store, Folder):
        name = os.path.basename(store.path) or index.name
        _check_shards(store, place, index, notes)

    def split(which: str) -> Packed | None:
        if which not in index.shards:
            return None
        samples = index.samples[which]
        classes = None if samples.labels is None else index.classes
        return Packed(store, index.shards[which], samples, name=name, classes=classes)

    apart, train, val = split(UNLABELLED), split(TRAIN), split(VAL)
    if train is None:
        raise UserError(f"{place} has no images to train on in its index: pack the data again.")
    if apart is not None:
        notes.append(f"{name} is packed: pre-training uses its {len(apart):,} unlabelled images.")
    validation = "" if val is None else f", {len(val):,} for validation"
    notes.append(f"{name} is packed: {len(train):,} images for training{validation}.")
    if train.labels is None:
        notes.append(f"{name} was packed without class folders: its images have no labels.")
    return apart, train, val


def _check_shards(store: Folder, shown: str, index: Index, notes: list[str]) -> None:
    """Refuse packed data with missing shards; add a note for each truncated one."""
    shards = [shard for listed in index.shards.values() for shard in listed]
    missing: list[str] = []
    for shard in shards:
        try:
            size = store.size(shard.file)
        except OSError:
            missing.append(shard.file)
            continue
        if size != shard.bytes:
            notes.append(
                f"{shown}/{shard.file} has {size:,} bytes instead of {shard.bytes:,}: images that "
                "cannot be read count as corrupt (run the same `lewel pack` command to repair it)."
            )
    if missing:
        more = ", ..." if len(missing) > SHOWN else ""
        raise UserError(
            f"{shown} lacks {len(missing):,} of its {len(shards):,} shards "
            f"({', '.join(missing[:SHOWN])}{more}): copy them there, or run the same `lewel pack` "
            "command again."
        )
