"""Packed data as sources: one read per image, from local or remote shards."""

import hashlib
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
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
    Shard,
    read_index,
)
from lewel.data.pack.storage import Storage
from lewel.data.pack.stores import Extent, Folder, Store, open_store
from lewel.data.pack.tables import Tables
from lewel.data.pack.urls import shown
from lewel.data.sources.images import UnreadableImage, decode_image
from lewel.data.views.blocks import BLOCK
from lewel.errors import UserError, too_many_files

SHOWN: Final = 3  # shards that a message names
CHECKS: Final = 2  # readings whose checksum must be wrong before an image counts as corrupt


class Packed:
    """A source over one split of packed data; the images are in storage order."""

    def __init__(
        self,
        store: Store,
        shards: list[Shard],
        tables: Tables,
        *,
        name: str,
        labels: npt.NDArray[np.int64] | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.name = name
        self.classes, self.labels = classes, labels
        self.fingerprint = hashlib.sha256("".join(s.sha256 for s in shards).encode()).hexdigest()
        self._store, self._tables = store, tables
        self.remote = not isinstance(store, Folder)
        self._files = [shard.file for shard in shards]
        counts = np.array([shard.images for shard in shards], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(counts)])  # of the shards; then the end

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def blocks(self) -> npt.NDArray[np.int32]:
        """The block of each image, (len,); a block ends with its shard, for one request."""
        blocks = np.empty(len(self), np.int32)
        first = 0
        for start, end in pairwise(self._starts.tolist()):
            blocks[start:end] = first + np.arange(end - start, dtype=np.int32) // BLOCK
            first += -(-(end - start) // BLOCK)
        return blocks

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return decode_image(self.load(index))

    def load(self, index: int) -> bytearray:
        """The image's bytes as they were packed; raises UnreadableImage, which names the shard."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard, place = self._place(index)
        file = self._files[shard]
        try:
            return self._checked(shard, place)
        except EOFError as error:
            raise UnreadableImage(f"{file} is truncated") from error
        except OSError as error:
            if too_many_files(error):  # no fault of this image
                raise
            reason = error.strerror or str(error) or type(error).__name__
            raise UnreadableImage(f"{file} cannot be read ({reason})") from error

    def _checked(self, shard: int, place: int) -> bytearray:
        """The bytes of a sample, read again where their checksum is wrong."""
        samples, block = self._tables.of(shard), self._block(shard, place)
        for _ in range(CHECKS):
            data = self._store.read(Extent(block.file, *samples.span(place)), block)
            if zlib.crc32(data) == samples.checksums[place]:
                return data
            self._store.forget(block)
        raise UnreadableImage(f"{block.file} is damaged")

    def checksum(self, index: int) -> int:
        """The checksum of the image's bytes, as the index has it."""
        shard, place = self._place(index)
        return int(self._tables.of(shard).checksums[place])

    def prefetch(self, indices: Iterable[int]) -> None:
        """Fetch what these images need, several requests at a time."""
        if self.remote:
            places = [self._place(index) for index in indices]
            self._tables.prefetch(dict.fromkeys(shard for shard, _ in places))
            blocks: dict[Extent, None] = {}
            for shard, place in places:
                with suppress(OSError, EOFError):  # shows where the image is read
                    blocks[self._block(shard, place)] = None
            self._store.prefetch(blocks)

    def describe(self, index: int) -> str:
        """The original path of the image."""
        shard, place = self._place(index)
        try:
            return self._tables.name(shard, place)
        except OSError:  # the names are damaged, perhaps not the image
            return f"image {place} of {self._files[shard]}"

    def _place(self, index: int) -> tuple[int, int]:
        """The shard of an image, and its place there."""
        shard = int(np.searchsorted(self._starts, index, "right")) - 1
        return shard, index - int(self._starts[shard])

    def _block(self, shard: int, place: int) -> Extent:
        """The byte range that is fetched for an image."""
        samples, first = self._tables.of(shard), place // BLOCK * BLOCK
        last = min(first + BLOCK, len(samples.offsets)) - 1
        return Extent(self._files[shard], samples.span(first)[0], samples.span(last)[1])


def is_packed(path: str) -> bool:
    """Whether a folder holds packed data, complete or not."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (INDEX, MANIFEST))


def open_packed(
    place: str, notes: list[str], storage: Storage
) -> tuple[Packed | None, Packed, Packed | None]:
    """Images only for pre-training, if there are any; all others; the validation set."""
    store, place = open_store(place, storage), shown(place)
    index = read_index(store, place)
    name = os.path.basename(place.rstrip("/").rpartition("://")[2]) or index.name
    if isinstance(store, Folder):
        name = os.path.basename(store.path) or index.name
        _check_shards(store, place, index, notes)

    def split(which: str) -> Packed | None:
        if which not in index.shards:
            return None
        labels = index.labels[which]
        return Packed(
            store,
            index.shards[which],
            index.tables[which],
            name=name,
            labels=labels,
            classes=None if labels is None else index.classes,
        )

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
