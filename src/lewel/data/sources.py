"""Where images come from: a data string is opened as sources to train on and to be judged on."""

import hashlib
import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from lewel.data.files import Files
from lewel.data.folders import open_folder
from lewel.data.lists import open_list, read_classes
from lewel.data.named import NAMES, open_named
from lewel.data.packed import Packed, is_packed, open_packed
from lewel.errors import UserError
from lewel.ops.randomness import generator

__all__ = [
    "Data",
    "Files",
    "Labels",
    "Source",
    "Subset",
    "blocks_of",
    "digest",
    "open_data",
    "open_splits",
]

Labels = npt.NDArray[np.int64]

HELD_OUT: Final = 0.1  # of the labelled images, where no split is given
_SPLIT_KEY: Final = 0x5B117  # keeps this stream apart from others drawn with the same seed


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
        """One class index an image, (len,)."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""

    def describe(self, index: int) -> str:
        """The image's path, relative to the data's folder."""


class Subset:
    """A source that shows some images of another, in the order of the indices."""

    def __init__(self, source: Source, indices: npt.ArrayLike) -> None:
        self.source = source
        self.indices = np.asarray(indices, dtype=np.int64)
        self.name = source.name
        self.classes = source.classes
        self.labels = None if source.labels is None else source.labels[self.indices]
        blocks = blocks_of(source)
        self.blocks = None if blocks is None else blocks[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return self.source.read(int(self.indices[index]))

    def describe(self, index: int) -> str:
        """The image's path, as the other source has it."""
        return self.source.describe(int(self.indices[index]))


class Data(NamedTuple):
    """What a data string gives; the notes are for the user to see."""

    unlabelled: Source  # what pre-training sees
    train: Source | None  # labelled, to learn from when judging
    val: Source | None  # labelled, to be judged on; never overlaps train
    notes: tuple[str, ...]  # what was decided, a plain sentence each


def blocks_of(source: Source) -> npt.NDArray[np.int32] | None:
    """The block that each image is stored in, (len,); None where images lie by themselves."""
    blocks: npt.NDArray[np.int32] | None = getattr(source, "blocks", None)
    return blocks


def digest(source: Source) -> str:
    """A fingerprint of which images a source holds, in their order."""
    if isinstance(source, Packed):
        return source.fingerprint
    state = hashlib.sha256()
    if isinstance(source, Subset) and source.blocks is not None:
        state.update(digest(source.source).encode() + source.indices.tobytes())
        return state.hexdigest()
    for index in range(len(source)):
        state.update(source.describe(index).encode("utf-8", "surrogateescape") + b"\0")
    return state.hexdigest()


def digest_with_truth(source: Source) -> str:
    """A fingerprint of a source's images and of what it says of them: labels, boxes, masks."""
    state = hashlib.sha256(digest(source).encode() + repr(source.classes).encode())
    if source.labels is not None:
        state.update(source.labels.tobytes())
    says = getattr(source, "says", None)  # of an image, in bytes: sources of dense tasks
    if says is not None:
        for index in range(len(source)):
            state.update(says(index) + b"\0")
    return state.hexdigest()


def open_data(
    data: str,
    *,
    image_size: int,
    limit: int | None = None,
    seed: int = 0,
    classes: str | None = None,
) -> Data:
    """Open `scenes`, a name of `NAMES`, a folder, a list, a CSV, or packed data, also by its URL.

    The seed decides split and limit; `classes` is a text file of the classes to keep.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit is {limit}: expected the number of images to use, 1 or more.")
    kept = None if classes is None else read_classes(classes)
    notes: list[str] = []
    # As with photos, a view shows less of a scene than there is.
    apart, everything, val = open_splits(data, image_size * 3 // 2, notes)
    if kept is not None:
        if apart is not None or everything.labels is None:
            raise UserError(
                f"{everything.name} cannot be reduced to the classes of {classes}, because images "
                "that pre-training sees have no labels: leave out classes, or give labelled data."
            )
        whole, everything = everything, _keep(everything, kept, str(classes))
        val = None if val is None else _keep(val, kept, str(classes))
        notes.append(
            f"{classes} keeps {len(kept):,} of {len(whole.classes or ()):,} classes of "
            f"{whole.name}: {len(everything):,} of {len(whole):,} images."
        )
    return _divide(apart, everything, val, limit, seed, notes)


def open_splits(
    data: str, scene_size: int, notes: list[str]
) -> tuple[Source | None, Source, Source | None]:
    """What pre-training alone sees, if there is such; all other images; those for judging."""
    if data == "scenes":
        from lewel.data.scenes import Scenes

        if os.path.exists(data):
            notes.append("scenes is the embedded data; write ./scenes for the folder.")
        # The world's seed is fixed: the data set stays the same whatever the training seed.
        train, val = (Scenes(split, size=scene_size, seed=0) for split in ("train", "val"))
        return None, train, val
    if data in NAMES:
        if os.path.exists(data):
            notes.append(f"{data} is torchvision's data set; write ./{data} for the folder.")
        return open_named(data, notes)
    if "://" in data:
        return open_packed(data, notes)
    path = os.path.expanduser(data)
    if os.path.isdir(path) and is_packed(path):
        return open_packed(path, notes)
    if os.path.isdir(path):
        return None, *open_folder(path, notes)
    if os.path.isfile(path):
        return None, open_list(path, notes), None
    if os.path.lexists(path) and not os.path.islink(path):
        raise UserError(f"{data} is neither a file nor a folder: give a folder of images.")
    raise UserError(_not_found(data, path))


def _keep(source: Source, names: Sequence[str], path: str) -> Subset:
    """The images of some classes, which are numbered anew in the order that they had."""
    assert source.classes is not None and source.labels is not None
    if unknown := [name for name in names if name not in source.classes]:
        more = ", ..." if len(unknown) > 3 else ""
        raise UserError(
            f"The class list {path} names {len(unknown):,} classes that {source.name} does not "
            f"have ({', '.join(unknown[:3])}{more}): expected names such as {source.classes[0]}."
        )
    old = [i for i, name in enumerate(source.classes) if name in names]
    new = np.full(len(source.classes), -1)
    new[old] = np.arange(len(old))
    subset = Subset(source, np.flatnonzero(new[source.labels] >= 0))
    subset.classes = tuple(source.classes[i] for i in old)
    subset.labels = new[source.labels[subset.indices]]
    return subset


def _divide(
    apart: Source | None,
    everything: Source,
    val: Source | None,
    limit: int | None,
    seed: int,
    notes: list[str],
) -> Data:
    """Hold out a tenth where labels come without a split, and keep `limit` images to train on."""
    if apart is not None:  # the limit is for pre-training: what judging learns from stays whole
        limited = _divide(None, apart, None, limit, seed, notes)
        return Data(limited.unlabelled, everything, val, limited.notes)
    count = len(everything)
    order = generator(seed, _SPLIT_KEY).permutation(count)
    # The start of the order is held out and the limit takes its end: limited images stay clear of
    # the held-out ones as long as there are others, and a lower limit takes a part of a higher's.
    held_out = 0
    if everything.labels is not None and val is None and count > 1:
        held_out = max(1, round(HELD_OUT * count))
        val = Subset(everything, np.sort(order[:held_out]))
        notes.append(
            f"{everything.name} has no labelled val/ or test/: {held_out:,} of its {count:,} "
            "images are kept for judging (pre-training, which uses no labels, still sees them)."
        )
    if limit is not None and limit > count:
        notes.append(f"limit is {limit:,} but there are {count:,} images: all are used.")
    first = 0 if limit is None else max(0, count - limit)
    unlabelled = Subset(everything, np.sort(order[first:])) if first else everything
    if everything.labels is None or val is None:
        return Data(unlabelled, None, None, tuple(notes))
    learn = max(first, held_out)
    train = Subset(everything, np.sort(order[learn:])) if learn else everything
    return Data(unlabelled, train, val, tuple(notes))


def _not_found(data: str, path: str) -> str:
    """One sentence that says what is missing, with close names where there are any."""
    missing = os.path.abspath(path)
    while not os.path.lexists(parent := os.path.dirname(missing)):
        missing = parent
    try:
        siblings = sorted(os.listdir(parent))[:10_000]
    except OSError:
        siblings = []
    close = get_close_matches(os.path.basename(missing), siblings, n=2)
    # Only a bare name can have meant the embedded data or a data set.
    if os.sep not in data and not close:
        close = get_close_matches(data.lower(), ["scenes", *NAMES], n=2)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return (
        f"{data or 'An empty name'} does not exist: expected a folder of images, a text file of "
        "paths, a CSV with the header path,label, packed data, scenes, or a data set's name such "
        f"as cifar10.{hint}"
    )
