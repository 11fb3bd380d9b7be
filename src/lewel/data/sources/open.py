"""Opens the data that a string names: images to pre-train on, training and validation set."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import numpy as np

from lewel.data.pack.storage import DEFAULT_STORAGE, Storage, note_on_cache
from lewel.data.pack.urls import is_url
from lewel.data.sources.file_list import Lists
from lewel.data.sources.folder import open_every_split as folder_splits
from lewel.data.sources.folder import open_folder
from lewel.data.sources.list import open_list, read_classes
from lewel.data.sources.named import NAMES, open_named
from lewel.data.sources.packed import Packed, is_packed, open_packed
from lewel.data.sources.source import Data, Source, Subset
from lewel.errors import UserError, state_of
from lewel.files import user_path
from lewel.ops.randomness import generator, permutation

HELD_OUT: Final = 0.1  # fraction of the labelled images, if there is no validation set
_SPLIT_KEY: Final = 0x5B117  # keeps this stream apart from others drawn with the same seed


def open_data(
    data: str,
    *,
    image_size: int,
    limit: int | None = None,
    seed: int = 0,
    classes: str | None = None,
    storage: Storage = DEFAULT_STORAGE,
    lists: Lists | None = None,
) -> Data:
    """Open `scenes`, a name of `NAMES`, a folder, a list, a CSV, or packed data, also by its URL.

    The seed decides split and limit; `classes` is a text file of the classes to keep. Lists of
    large folders are kept where `lists` says.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit is {limit}: expected the number of images to use, 1 or more.")
    kept = None if classes is None else read_classes(classes)
    notes: list[str] = []
    # Larger than a view, so that a crop shows only a fraction of a scene, as with photos.
    apart, everything, val = open_splits(data, image_size * 3 // 2, notes, lists, storage)
    if kept is not None:
        if apart is not None or everything.labels is None:
            raise UserError(
                f"{everything.name} cannot be reduced to the classes of {classes}, because its "
                "pre-training images have no labels: leave out classes, or give labelled data."
            )
        before, everything = everything, _keep(everything, kept, str(classes))
        val = None if val is None else _keep(val, kept, str(classes))
        notes.append(
            f"{classes} keeps {len(kept):,} of {len(before.classes or ()):,} classes of "
            f"{before.name}: {len(everything):,} of {len(before):,} images."
        )
    return _divide(apart, everything, val, limit, seed, notes)


def open_splits(
    data: str,
    scene_size: int,
    notes: list[str],
    lists: Lists | None = None,
    storage: Storage = DEFAULT_STORAGE,
) -> tuple[Source | None, Source, Source | None]:
    """Images only for pre-training, if there are any; all others; the validation set."""
    notes += note_on_cache(data, storage)
    if data == "scenes":
        from lewel.data.sources.scenes import Scenes

        if os.path.exists(data):
            notes.append("scenes is the embedded data; write ./scenes for the folder.")
        # A fixed seed: the data set does not depend on the training seed.
        train, val = (Scenes(split, size=scene_size, seed=0) for split in ("train", "val"))
        return None, train, val
    if data in NAMES:
        if os.path.exists(data):
            notes.append(f"{data} is torchvision's data set; write ./{data} for the folder.")
        return open_named(data, notes)
    if is_url(data):
        return open_packed(data, notes, storage)
    path = str(user_path(data))
    if os.path.isdir(path) and is_packed(path):
        return open_packed(path, notes, storage)
    if os.path.isdir(path):
        return None, *open_folder(path, notes, lists)
    if os.path.isfile(path):
        return None, open_list(path, notes), None
    raise UserError(_not_found(data, path))


def open_every_split(
    data: str,
    image_size: int,
    notes: list[str],
    lists: Lists | None = None,
    storage: Storage = DEFAULT_STORAGE,
) -> dict[str, Source]:
    """All images of the data by split, each image once."""
    path = "" if is_url(data) else str(user_path(data))
    if data != "scenes" and data not in NAMES and os.path.isdir(path) and not is_packed(path):
        notes += note_on_cache(data, storage)
        return dict(folder_splits(path, notes, lists))
    apart, train, val = open_splits(data, image_size * 3 // 2, notes, lists, storage)
    if isinstance(train, Packed):
        from lewel.data.dense.packed import annotated_splits  # which opens folders, too

        if every := annotated_splits(data, storage):
            return dict(every)
    found = {"unlabelled": apart, "train": train, "val": val}
    return {split: source for split, source in found.items() if source is not None}


def _keep(source: Source, names: Sequence[str], path: str) -> Subset:
    """The images of some classes; labels are renumbered in the same order."""
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
    """Hold out a tenth if there are labels but no split, and keep `limit` training images."""
    if apart is not None:  # the limit is for pre-training: evaluations keep their training set
        limited = _divide(None, apart, None, limit, seed, notes)
        return Data(limited.unlabelled, everything, val, limited.notes)
    count = len(everything)
    # The start of the order is held out and the limit takes its end: limited images avoid the
    # held-out ones while there are others, and a lower limit gives a subset of a higher one.
    first = 0 if limit is None else max(0, count - limit)
    splits = everything.labels is not None and val is None and count > 1
    order = permutation(generator(seed, _SPLIT_KEY), count) if first or splits else np.arange(0)
    held_out = 0
    if splits:
        held_out = max(1, round(HELD_OUT * count))
        val = Subset(everything, np.sort(order[:held_out]))
        notes.append(
            f"{everything.name} has no labelled val/ or test/: {held_out:,} of its {count:,} "
            "images are held out for validation (pre-training includes them, without labels)."
        )
    if limit is not None and limit > count:
        notes.append(f"limit is {limit:,} but there are {count:,} images: all are used.")
    unlabelled = Subset(everything, np.sort(order[first:])) if first else everything
    if everything.labels is None or val is None:
        return Data(unlabelled, None, None, tuple(notes))
    start = max(first, held_out)
    order[start:].sort()  # in place: it is not needed any more
    train = Subset(everything, order[start:]) if start else everything
    return Data(unlabelled, train, val, tuple(notes))


def _not_found(data: str, path: str) -> str:
    """The message for data that does not exist, with similar names if there are any."""
    missing = os.path.abspath(path)
    while not os.path.lexists(parent := os.path.dirname(missing)):
        missing = parent
    try:
        siblings = sorted(os.listdir(parent))[:10_000]
    except OSError:
        siblings = []
    close = get_close_matches(os.path.basename(missing), siblings, n=2)
    # Only a name without a folder can be a misspelt data set.
    if os.sep not in data and not close:
        close = get_close_matches(data.lower(), ["scenes", *NAMES], n=2)
    hint = f" Did you mean {' or '.join(close)}?" if close and not os.path.lexists(path) else ""
    return (
        f"{data or 'An empty name'} {state_of(path)}: expected a folder of images, a text file of "
        "paths, a CSV with the header path,label, packed data, scenes, or a data set's name such "
        f"as cifar10.{hint}"
    )
