"""A folder of images: its splits, its classes and the paths of all images below it."""

import filecmp
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from lewel.data.sources.file_list import Lists, find_images
from lewel.data.sources.files import Files
from lewel.data.sources.layouts import TRAIN, VALIDATION_SPLITS, find_layout
from lewel.data.sources.scan import entries, is_, scan
from lewel.data.sources.source import Source
from lewel.errors import UserError

# Words of splits in names such as train2017, seg_test or validation_images.
_SPLIT: Final = re.compile(
    r"(^|[^a-z])(train(ing)?|val(id(ation)?)?|test(ing)?|dev|eval)([^a-z]|$)"
)
_SPLIT_BELOW: Final = re.compile(rf"[^/]+/({'|'.join((TRAIN, *VALIDATION_SPLITS))})/[^/]+$", re.I)
COMPARED: Final = 1000  # images of val/ that are looked for in train/
EXPECTED: Final = ".jpg, .png, .webp, .avif, .bmp, .tif or .gif"


def open_folder(
    root: str, notes: list[str], lists: Lists | None = None
) -> tuple[Files, Files | None]:
    """The training set of a folder, and its validation set if it has one."""
    name = os.path.basename(os.path.abspath(root)) or "images"
    # Case is ignored: Train/ and Test/ would otherwise be taken for two classes.
    splits = _by_lower_case(root, name)
    folders: tuple[str, ...] = ("",)
    if (layout := find_layout(Path(root), name)) is not None:
        folders, splits = layout.folders, layout.splits
        notes.append(layout.note)
    train, val = open_folders(
        name,
        splits,
        folders,
        notes,
        lambda below: _scan(root, below, name, lists),
        lambda below: {e.name for e in entries(os.path.join(root, below)) if is_(e.is_dir)},
        lambda one, other: os.path.samefile(os.path.join(root, one), os.path.join(root, other)),
    )
    if val is not None:
        notes += note_on_shared(val, os.path.join(root, splits[TRAIN]))
    return train, val


def note_on_shared(val: Files, train: str) -> list[str]:
    """A note on validation images that are training images, too; most of them are refused.

    Links into the training folder, and files that are there under the same name: up to COMPARED
    are looked at.
    """
    sample = np.unique(np.linspace(0, len(val) - 1, COMPARED).astype(int))
    paths = [val.describe(int(index)) for index in sample]
    shared = [path for path in paths if _is_shared(val.root, path, train)]
    if not shared:
        return []
    split = shared[0].partition("/")[0]
    many = f"{len(shared):,} of {len(paths):,} validation images that were compared"
    if len(shared) > len(paths) / 2:
        raise UserError(
            f"{many} are training images, for example {shared[0]}: accuracy on them means nothing. "
            f"Put other images into {val.name}/{split}, or remove it."
        )
    return [f"{many} are training images, for example {shared[0]}: accuracy will be too high."]


def _is_shared(root: str, path: str, train: str) -> bool:
    """Whether an image, split/class/name, is a link into train/, or a copy of train/class/name."""
    full, twin = os.path.join(root, path), os.path.join(train, path.partition("/")[2])
    inside = os.path.realpath(train) + os.sep
    if os.path.islink(full) and os.path.realpath(full).startswith(inside):
        return True
    same = os.path.isfile(twin) and os.path.getsize(full) > 0
    return same and filecmp.cmp(full, twin, shallow=False)


class Foldered(Source, Protocol):
    """A source whose class folders may be left out."""

    def without_labels(self) -> Any:
        """The same images without labels and classes."""


Own = TypeVar("Own", bound=Foldered)


def open_folders(
    name: str,
    splits: dict[str, str],
    folders: tuple[str, ...],
    notes: list[str],
    find: Callable[[tuple[str, ...]], Own],
    classes_of: Callable[[str], set[str]] = lambda folder: set(),
    same: Callable[[str, str], bool] = lambda one, other: False,
) -> tuple[Own, Own | None]:
    """The training set and the validation set of data whose splits and classes are folders.

    `find` gives the images below folders, `classes_of` the subfolders of one.
    """
    if TRAIN not in splits:
        train = find(folders)
        if train.classes is not None and (parts := split_folders(train)):
            notes.append(
                f"{name} has folders that look like splits ({', '.join(parts)}): they are no "
                f"classes, and its {len(train):,} images have no labels. Rename them to train/ and "
                "val/, each with class folders."
            )
            return train.without_labels(), None
        if train.classes is None:
            notes.append(f"{name} has no class folders: its {len(train):,} images have no labels.")
        notes += _empty_classes(classes_of, folders[0], train)
        return train, None
    train = find((splits[TRAIN],))
    shown = f"{splits[TRAIN]}/"
    notes.append(f"{name} has {shown}: only its {len(train):,} images are used for training.")
    if train.classes is None:
        notes.append(f"{name}/{shown} has no class folders: its images have no labels.")
        return train, None
    notes += _empty_classes(classes_of, splits[TRAIN], train)
    unusable = False
    for split in (splits[word] for word in VALIDATION_SPLITS if word in splits):
        if same(split, splits[TRAIN]):
            raise UserError(f"{name}/{split} is the same folder as {name}/{shown}: remove it.")
        try:
            val = find((split,))
        except UserError as error:  # it matters for evaluation only, not for pre-training
            notes.append(str(error))
            unusable = True
            continue
        classes = val.classes or _common_folder(val, split, train.classes)
        if classes is None:
            notes.append(f"{name}/{split}/ has no class folders: it is not used for validation.")
            continue
        if classes != train.classes:
            notes.append(_different_classes(name, split, classes, train.classes))
            return train.without_labels(), None
        notes.append(f"{name} has {split}/: its {len(val):,} images are used for validation.")
        return train, val
    # A tenth of train/ in the place of an empty val/ would not be what its name promises.
    return train.without_labels() if unusable else train, None


def _by_lower_case(root: str, name: str) -> dict[str, str]:
    """The subfolders of a folder by their names in lower case."""
    found: dict[str, str] = {}
    for entry in sorted(entries(root), key=lambda entry: entry.name):
        if is_(entry.is_dir):
            other = found.setdefault(entry.name.lower(), entry.name)
            if other != entry.name and entry.name.lower() in (TRAIN, *VALIDATION_SPLITS):
                raise UserError(f"{name} has both {other}/ and {entry.name}/: keep one of them.")
    return found


def split_folders(source: Source) -> list[str]:
    """Class folders that are splits by their names, or subfolders of all classes that are.

    For example training/ and validation/, or ant/train and ant/val.
    """
    assert source.classes is not None and source.labels is not None
    named = [one for one in source.classes if _SPLIT.search(one.lower())]
    if any("train" in one.lower() for one in named) and len(named) == len(source.classes):
        return list(named)
    # Paths are sorted, and so are labels: no pass over millions of them, which may be in a file.
    firsts = (bisect_left(source.labels, label) for label in range(len(source.classes)))
    paths = (source.describe(min(first, len(source) - 1)) for first in firsts)
    if all(_SPLIT_BELOW.match(path) for path in paths):
        return [os.path.dirname(source.describe(0))]
    return []


def open_every_split(root: str, notes: list[str], lists: Lists | None = None) -> dict[str, Files]:
    """All images of a folder by split, whether these have labels or not; train without splits."""
    name = os.path.basename(os.path.abspath(root)) or "images"
    names = _by_lower_case(root, name)
    words = [word for word in (TRAIN, *VALIDATION_SPLITS) if word in names]
    splits: dict[str, tuple[str, ...]] = {TRAIN: ("",)}
    if TRAIN in names:
        splits = {word: (names[word],) for word in words}
    if (layout := find_layout(Path(root), name)) is not None:
        every = {word: (folder,) for word, folder in layout.every.items()}
        splits = {**every} or {TRAIN: layout.folders}
        notes.append(layout.note if len(splits) == 1 else layout.note.replace(": only ", ": "))
    found: dict[str, Files] = {}
    for split, folders in splits.items():
        earlier = [os.path.join(root, folder) for word in found for folder in splits[word]]
        if any(os.path.samefile(os.path.join(root, folders[0]), one) for one in earlier):
            continue  # a link to another split
        try:
            found[split] = _scan(root, folders, name, lists)
        except UserError as error:
            notes.append(str(error))
    if not found:
        raise UserError(notes[-1])
    return found


def _empty_classes(classes_of: Callable[[str], set[str]], folder: str, train: Source) -> list[str]:
    """A note on class folders without an image, if there are any."""
    if train.classes is None:
        return []
    empty = sorted(classes_of(folder) - set(train.classes))
    if not empty:
        return []
    more = f" and {len(empty) - 3:,} more" if len(empty) > 3 else ""
    names = f"{', '.join(empty[:3])}{more}"
    return [f"{train.name} has folders without an image: {names}; they are no classes."]


def _common_folder(val: Source, split: str, classes: Sequence[str]) -> tuple[str, ...] | None:
    """The one class folder of a validation set, if it has only one and it is a class."""
    found = {val.describe(index)[len(split) + 1 :].partition("/")[0] for index in range(len(val))}
    return tuple(found) if len(found) == 1 and found <= set(classes) else None


def _different_classes(name: str, split: str, val: Sequence[str], train: Sequence[str]) -> str:
    parts = []
    for names, text in (
        (sorted(set(val) - set(train)), "only in " + split),
        (sorted(set(train) - set(val)), "only in train"),
    ):
        if names:
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            parts.append(f"{', '.join(names[:3])}{more} {text}")
    return (
        f"{name}/{split} and {name}/train have different class folders, {'; '.join(parts)}: "
        "labels are not used, and there is no validation set."
    )


def _scan(root: str, folders: tuple[str, ...], name: str, lists: Lists | None) -> Files:
    """All images below folders of the root, sorted; subfolders of a single one are classes."""
    found = find_images(root, folders, lists)
    if not len(found.names):
        shown = os.path.join(name, folders[0]) if folders[0] else name
        others = scan(root, folders).others
        seen = ", ".join(f"{suffix or 'no suffix'} {n:,}" for suffix, n in others.most_common(4))
        held = f"{others.total():,} files seen, of these {seen}" if others else "it has no files"
        hint = " Pack WebDataset's tars first: lewel pack TARS SHARDS." if ".tar" in others else ""
        raise UserError(
            f"{shown} holds no image: {held}; expected {EXPECTED} files in it or its subfolders."
            f"{hint}"
        )
    labelled = len(folders) == 1 and are_classes(found.groups)
    return Files.found(root, found, name, labelled)


def are_classes(groups: Sequence[str]) -> bool:
    """Whether the first folders of all images are classes; val and test hold splits."""
    splits = {group.lower() for group in groups} <= {TRAIN, *VALIDATION_SPLITS}
    return "" not in groups and len(groups) > 1 and not splits
