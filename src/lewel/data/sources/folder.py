"""A folder of images: its splits, its classes and the paths of all images below it."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from lewel.data.sources.files import Files
from lewel.data.sources.images import SUFFIXES
from lewel.data.sources.layouts import TRAIN, VALIDATION_SPLITS, find_layout
from lewel.errors import UserError

EXPECTED: Final = ".jpg, .png, .webp, .bmp, .tif or .gif"


def open_folder(root: str, notes: list[str]) -> tuple[Files, Files | None]:
    """The training set of a folder, and its validation set if it has one."""
    name = os.path.basename(os.path.abspath(root)) or "images"
    # Case is ignored: Train/ and Test/ would otherwise be taken for two classes.
    splits = {entry.name.lower(): entry.name for entry in _entries(root) if _is(entry.is_dir)}
    folders: tuple[str, ...] = ("",)
    if (layout := find_layout(root, name)) is not None:
        folders, splits, note = layout
        notes.append(note)
    if TRAIN not in splits:
        train = _scan(root, folders, name)
        if train.classes is None:
            notes.append(f"{name} has no class folders: its {len(train):,} images have no labels.")
        notes += _empty_classes(root, folders[0], train)
        return train, None
    train = _scan(root, (splits[TRAIN],), name)
    shown = f"{splits[TRAIN]}/"
    notes.append(f"{name} has {shown}: only its {len(train):,} images are used for training.")
    if train.classes is None:
        notes.append(f"{name}/{shown} has no class folders: its images have no labels.")
        return train, None
    notes += _empty_classes(root, splits[TRAIN], train)
    unusable = False
    for split in (splits[word] for word in VALIDATION_SPLITS if word in splits):
        if os.path.samefile(os.path.join(root, split), os.path.join(root, splits[TRAIN])):
            raise UserError(f"{name}/{split} is the same folder as {name}/{shown}: remove it.")
        try:
            val = _scan(root, (split,), name)
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


def _empty_classes(root: str, folder: str, train: Files) -> list[str]:
    """A note on class folders without an image, if there are any."""
    if train.classes is None:
        return []
    found = {entry.name for entry in _entries(os.path.join(root, folder)) if _is(entry.is_dir)}
    empty = sorted(found - set(train.classes))
    if not empty:
        return []
    more = f" and {len(empty) - 3:,} more" if len(empty) > 3 else ""
    names = f"{', '.join(empty[:3])}{more}"
    return [f"{train.name} has folders without an image: {names}; they are no classes."]


def _common_folder(val: Files, split: str, classes: Sequence[str]) -> tuple[str, ...] | None:
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


def _scan(root: str, folders: tuple[str, ...], name: str) -> Files:
    """All images below folders of the root, sorted; subfolders of a single one are classes."""
    paths, others = _walk(root, folders)
    folder = folders[0]
    if not paths:
        shown = os.path.join(name, folder) if folder else name
        seen = ", ".join(f"{suffix or 'no suffix'} {n:,}" for suffix, n in others.most_common(4))
        found = f"{others.total():,} files seen, of these {seen}" if others else "it has no files"
        raise UserError(
            f"{shown} holds no image: {found}; expected {EXPECTED} files in it or its subfolders."
        )
    depth = len(folder) + 1 if folder else 0
    parents = [path[depth:].partition("/") for path in paths]
    classes = tuple(sorted({first for first, slash, _ in parents if slash}))
    flat = any(not slash for _, slash, _ in parents)
    # Folders called val and test hold splits, not classes.
    splits = {name.lower() for name in classes} <= {TRAIN, *VALIDATION_SPLITS}
    if len(folders) > 1 or flat or len(classes) < 2 or splits:
        return Files(root, paths, name=name)
    index = {label: i for i, label in enumerate(classes)}
    labels = (index[first] for first, _, _ in parents)
    return Files(root, paths, name=name, labels=labels, classes=classes)


def _walk(root: str, folders: tuple[str, ...]) -> tuple[list[str], Counter[str]]:
    """Paths of the images below folders of the root, sorted; suffixes of other files."""
    paths: list[str] = []
    others: Counter[str] = Counter()
    seen: set[tuple[int, int]] = set()
    real = list(folders)
    linked: list[str] = []
    while real or linked:
        # Each folder is entered once, so loops end. Real paths come before links to them.
        current = real.pop() if real else linked.pop()
        full = os.path.join(root, current) if current else root
        try:
            status = os.stat(full)
        except OSError as error:
            raise _unreadable_folder(full, error) from error
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        prefix = current + "/" if current else ""
        for entry in _entries(full):
            if _is(entry.is_dir):
                (linked if entry.is_symlink() else real).append(prefix + entry.name)
            elif (suffix := os.path.splitext(entry.name)[1].lower()) not in SUFFIXES:
                others[suffix] += 1
            elif _is(entry.is_file):  # not a broken link, a pipe or a device
                paths.append(prefix + entry.name)
        linked.sort(reverse=True)
    paths.sort()  # the order of a directory listing is arbitrary
    return paths, others


def _entries(folder: str) -> list["os.DirEntry[str]"]:
    """What a folder holds, without hidden entries."""
    try:
        with os.scandir(folder) as entries:
            return [e for e in entries if not e.name.startswith(".") and e.name != "__MACOSX"]
    except OSError as error:
        raise _unreadable_folder(folder, error) from error


def _is(check: Callable[[], bool]) -> bool:
    """A directory entry's own check; False for a link to itself."""
    try:
        return check()
    except OSError:
        return False


def _unreadable_folder(folder: str, error: OSError) -> UserError:
    reason = (error.strerror or type(error).__name__).lower()
    return UserError(f"Cannot read the folder {folder} ({reason}): make it readable or move it.")
