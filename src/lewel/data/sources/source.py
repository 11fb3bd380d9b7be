"""A source of images: by index, with labels or without; subsets and fingerprints of one."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

Labels = npt.NDArray[np.int64]


class Source(Protocol):
    """Images by index, with labels or without."""

    @property
    def name(self) -> str:
        """Short, for the run folder."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names, in the order of the labels."""

    @property
    def labels(self) -> Labels | None:
        """One class index per image, (len,)."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""

    def describe(self, index: int) -> str:
        """The image's path, relative to the data's folder."""


class Subset:
    """A subset of a source, in the order of the indices."""

    def __init__(self, source: Source, indices: npt.ArrayLike) -> None:
        self.source = source
        given = np.asarray(indices)
        self.indices = given if given.dtype == np.int32 else given.astype(np.int64, copy=False)
        self.name = source.name
        self.classes = source.classes
        self._labels: Labels | None = None
        blocks = blocks_of(source)
        self.blocks = None if blocks is None else blocks[self.indices]

    @property
    def labels(self) -> Labels | None:
        """One class index per image, (len,); made when they are first asked for."""
        if self._labels is None and self.source.labels is not None:
            self._labels = self.source.labels[self.indices]
        return self._labels

    @labels.setter
    def labels(self, labels: Labels | None) -> None:
        self._labels = labels

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return self.source.read(int(self.indices[index]))

    def describe(self, index: int) -> str:
        """The image's path, as the other source has it."""
        return self.source.describe(int(self.indices[index]))


class Data(NamedTuple):
    """The data that a string names; the notes are printed."""

    unlabelled: Source  # for pre-training
    train: Source | None  # labelled: the training set of evaluations
    val: Source | None  # labelled: the validation set; never overlaps train
    notes: tuple[str, ...]  # what was decided, one message each


def labels_at(source: Source, indices: npt.NDArray[np.int64]) -> Labels:
    """The labels of some images of a labelled source, without making all of them."""
    while isinstance(source, Subset) and source._labels is None:
        indices, source = source.indices[indices], source.source
    assert source.labels is not None
    return source.labels[indices]


def blocks_of(source: Source) -> npt.NDArray[np.int32] | None:
    """The block that each image is stored in, (len,); None if images are not stored in blocks."""
    blocks: npt.NDArray[np.int32] | None = getattr(source, "blocks", None)
    return blocks


def prefetch(source: Source, indices: Sequence[int]) -> None:
    """Fetch images that will be read next, where they are not on this machine."""
    while isinstance(source, Subset):
        indices = source.indices[np.asarray(indices)].tolist()
        source = source.source
    fetch: Callable[[Sequence[int]], None] = getattr(source, "prefetch", lambda indices: None)
    fetch(indices)


def is_remote(source: Source | None) -> bool:
    """Whether images are read from storage that may not answer for a while."""
    while isinstance(source, Subset):
        source = source.source
    return bool(getattr(source, "remote", False))


def digest(source: Source) -> str:
    """A fingerprint of the names of the images, in their order."""
    if (known := getattr(source, "fingerprint", None)) is not None:  # packed data has its own
        return str(known)
    state = hashlib.sha256()
    if isinstance(source, Subset) and source.blocks is not None:
        state.update(digest(source.source).encode() + source.indices.astype(np.int64).tobytes())
        return state.hexdigest()
    for index in range(len(source)):
        state.update(source.describe(index).encode("utf-8", "surrogateescape") + b"\0")
    return state.hexdigest()


def annotation_files(source: Source) -> list[Path]:
    """The mask files of a source; none where annotations are in memory or there are none."""
    file_of: Callable[[int], Path | None] | None = getattr(source, "annotation_file", None)
    found = [] if file_of is None else [file_of(index) for index in range(len(source))]
    return [file for file in found if file is not None]


def image_files(source: Source) -> Iterator[Path]:
    """The image files of a source; none where images are drawn, in memory or packed."""
    within: object = source
    while isinstance(within, Subset):
        within = within.source
    root = getattr(within, "root", None)
    for index in range(len(source) if root else 0):
        yield Path(root or "", source.describe(index))


def digest_of_times(files: Iterable[Path]) -> str | None:
    """A fingerprint of sizes and times of files; None where there are none.

    Reading all images would take long; one that was replaced has another time.
    """
    state, found = hashlib.sha256(), False
    for file in files:
        found = True
        try:
            facts = os.stat(file)
            state.update(f"{facts.st_size} {facts.st_mtime_ns}\0".encode())
        except OSError:  # reading it names the reason
            state.update(b"\0")
    return state.hexdigest() if found else None


def digest_of_files(files: Iterable[Path]) -> str:
    """A fingerprint of the content of files."""
    state = hashlib.sha256()
    for file in files:
        state.update(hashlib.sha256(file.read_bytes()).digest())
    return state.hexdigest()


def digest_with_labels(source: Source) -> str:
    """A fingerprint of a source's images and of their labels, boxes or masks."""
    state = hashlib.sha256(digest(source).encode() + repr(source.classes).encode())
    if source.labels is not None:
        state.update(source.labels.tobytes())
    annotation = getattr(source, "annotation_bytes", None)  # only sources of dense tasks
    if annotation is not None:
        for index in range(len(source)):
            state.update(annotation(index) + b"\0")
    return state.hexdigest()
