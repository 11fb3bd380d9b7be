"""Where images come from: a data string is opened as sources to train on and to be judged on."""

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from lewel.data.images import SUFFIXES, read_image
from lewel.errors import UserError
from lewel.ops.randomness import generator

Labels = npt.NDArray[np.int64]

TRAIN: Final = "train"
JUDGING: Final = ("val", "test", "valid", "validation")  # the first that has labels is taken
HELD_OUT: Final = 0.1  # of the labelled images, where no split is given
EXPECTED: Final = ".jpg, .png, .webp, .bmp, .tif or .gif"
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


class Files:
    """A source over image files; paths are relative to the root, or absolute."""

    def __init__(
        self,
        root: str | Path,
        paths: Sequence[str],
        *,
        name: str | None = None,
        labels: Iterable[int] | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self.name = name or os.path.basename(self.root) or "images"
        self.classes = classes
        self.labels = None if labels is None else np.fromiter(labels, np.int64, len(paths))
        # Two arrays, not a list: a forked worker that reads a list of a million strings touches
        # every reference count, and so copies the whole list into its own memory.
        encoded = [os.fsencode(path) for path in paths]
        self._characters = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return read_image(os.path.join(self.root, self.describe(index)))

    def describe(self, index: int) -> str:
        """The path as it was given: relative to the root, or absolute."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self._ends[index - 1] if index else 0
        return os.fsdecode(self._characters[start : self._ends[index]].tobytes())


class Subset:
    """A source that shows some images of another, in the order of the indices."""

    def __init__(self, source: Source, indices: npt.ArrayLike) -> None:
        self.source = source
        self.indices = np.asarray(indices, dtype=np.int64)
        self.name = source.name
        self.classes = source.classes
        self.labels = None if source.labels is None else source.labels[self.indices]

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


def open_data(data: str, *, image_size: int, limit: int | None = None, seed: int = 0) -> Data:
    """Open `scenes`, a folder, a text file of paths or a CSV; the seed decides split and limit."""
    if limit is not None and limit < 1:
        raise UserError(f"limit is {limit}: expected the number of images to use, 1 or more.")
    notes: list[str] = []
    val: Source | None = None
    if data == "scenes":
        from lewel.data.scenes import Scenes

        # The world's seed is fixed: the data set stays the same whatever the training seed.
        everything: Source = Scenes("train", size=image_size, seed=0)
        val = Scenes("val", size=image_size, seed=0)
        if os.path.exists(data):
            notes.append("scenes is the embedded data; write ./scenes for the folder.")
    else:
        path = os.path.expanduser(data)
        if os.path.isdir(path):
            everything, val = _open_folder(path, notes)
        elif os.path.isfile(path):
            everything = _open_list(path, notes)
        elif os.path.lexists(path) and not os.path.islink(path):
            raise UserError(f"{data} is neither a file nor a folder: give a folder of images.")
        else:
            raise UserError(_not_found(data, path))
    return _divide(everything, val, limit, seed, notes)


def _divide(
    everything: Source, val: Source | None, limit: int | None, seed: int, notes: list[str]
) -> Data:
    """Hold out a tenth where labels come without a split, and keep `limit` images to train on."""
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
            "images are held out for judging."
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


def _open_folder(root: str, notes: list[str]) -> tuple[Files, Files | None]:
    """The folder's images to train on, and those of its own split for judging, if it has one."""
    name = os.path.basename(os.path.abspath(root)) or "images"
    # Letters' case is ignored: Train/ and Test/ would be taken for two classes otherwise.
    splits = {entry.name.lower(): entry.name for entry in _entries(root) if _is(entry.is_dir)}
    if TRAIN not in splits:
        train = _scan(root, "", name)
        if train.classes is None:
            notes.append(f"{name} has no class folders: its {len(train):,} images have no labels.")
        return train, None
    train = _scan(root, splits[TRAIN], name)
    shown = f"{splits[TRAIN]}/"
    notes.append(f"{name} has {shown}: only its {len(train):,} images are used for training.")
    if train.classes is None:
        notes.append(f"{name}/{shown} has no class folders: its images have no labels.")
        return train, None
    for split in (splits[judging] for judging in JUDGING if judging in splits):
        if os.path.samefile(os.path.join(root, split), os.path.join(root, splits[TRAIN])):
            raise UserError(f"{name}/{split} is the same folder as {name}/{shown}: remove it.")
        val = _scan(root, split, name)
        if val.classes is None:
            notes.append(f"{name}/{split}/ has no class folders: it is not used for judging.")
            continue
        if val.classes != train.classes:
            raise UserError(_different_classes(name, split, val.classes, train.classes))
        notes.append(f"{name} has {split}/: its {len(val):,} images are used for judging.")
        return train, val
    return train, None


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
        f"{name}/{split} and {name}/train have different class folders ({'; '.join(parts)}): "
        "give both the same ones."
    )


def _scan(root: str, folder: str, name: str) -> Files:
    """All images below root/folder, sorted, with the immediate subfolders as classes."""
    paths, others = _walk(root, folder)
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
    if flat or len(classes) < 2 or {c.lower() for c in classes} <= {TRAIN, *JUDGING}:
        return Files(root, paths, name=name)
    index = {label: i for i, label in enumerate(classes)}
    labels = (index[first] for first, _, _ in parents)
    return Files(root, paths, name=name, labels=labels, classes=classes)


def _walk(root: str, folder: str) -> tuple[list[str], Counter[str]]:
    """Paths of the images below root/folder relative to root, sorted; suffixes of other files."""
    paths: list[str] = []
    others: Counter[str] = Counter()
    seen: set[tuple[int, int]] = set()
    real = [folder]
    linked: list[str] = []
    while real or linked:
        # Each folder is entered once, so loops end. Links wait: a folder's own place comes first.
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
    paths.sort()  # the order of a file system is its own
    return paths, others


def _entries(folder: str) -> list["os.DirEntry[str]"]:
    """What a folder holds, without hidden entries."""
    try:
        with os.scandir(folder) as entries:
            return [e for e in entries if not e.name.startswith(".") and e.name != "__MACOSX"]
    except OSError as error:
        raise _unreadable_folder(folder, error) from error


def _is(check: Callable[[], bool]) -> bool:
    """A directory entry's own check; False for a link that only leads back to itself."""
    try:
        return check()
    except OSError:
        return False


def _unreadable_folder(folder: str, error: OSError) -> UserError:
    reason = (error.strerror or type(error).__name__).lower()
    return UserError(f"Cannot read the folder {folder} ({reason}): make it readable or move it.")


def _open_list(path: str, notes: list[str]) -> Files:
    """The images that a text file or a CSV names, in its order."""
    if Path(path).suffix.lower() in SUFFIXES:
        raise UserError(f"{path} is one image: give the folder that holds it, or a list of paths.")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: expected a folder of images (unpack an archive first), "
            "a text file of paths or a CSV with the header path,label."
        ) from error
    except OSError as error:
        raise UserError(f"Cannot read {path} ({error.strerror}): make it readable.") from error
    is_csv = Path(path).suffix.lower() == ".csv"
    if is_csv:
        rows = _csv_rows(path, text)
    else:
        lines = (line.strip() for line in text.split("\n"))
        rows = [(line, None) for line in lines if line and not line.startswith("#")]
    labels = _unique(path, rows)
    if not labels:
        raise UserError(f"{path} names no image: expected one path a line.")
    if len(labels) < len(rows):
        notes.append(f"{path} repeats {len(rows) - len(labels):,} paths: each is used once.")
    root = os.path.dirname(os.path.abspath(path))
    missing = [entry for entry in labels if not os.path.isfile(os.path.join(root, entry))]
    if missing:
        raise UserError(
            f"{path} names {len(missing):,} files of {len(labels):,} that do not exist "
            f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}): paths are taken "
            f"relative to {root}."
        )
    name, names = Path(path).stem, {label for label in labels.values() if label is not None}
    if not names:
        if is_csv:
            notes.append(f"{path} has no column label: its images have no labels.")
        return Files(root, list(labels), name=name)
    # Numbers are sorted as numbers, so that label 3 of 0 to 99 is class 3.
    numbers = all(label.isdecimal() for label in names)
    classes = tuple(sorted(names, key=lambda label: (int(label) if numbers else 0, label)))
    index = {label: i for i, label in enumerate(classes)}
    encoded = [index[label] for label in labels.values() if label is not None]
    return Files(root, list(labels), name=name, labels=encoded, classes=classes)


def _csv_rows(path: str, text: str) -> list[tuple[str, str | None]]:
    """(path, label) of each row; the label is None where the CSV has no such column."""
    reader = csv.DictReader(StringIO(text, newline=""), skipinitialspace=True)
    try:
        header = [column.strip().lower() for column in reader.fieldnames or ()]
        reader.fieldnames = header
        if "path" not in header:
            raise UserError(
                f"{path} has no column path: its first line is '{','.join(header)}', expected "
                "path,label."
            )
        table = [row for row in reader if (row["path"] or "").strip()]
    except csv.Error as error:
        raise UserError(
            f"{path} is not a CSV ({error}): expected the header path,label."
        ) from error
    labels = [(row.get("label") or "").strip() for row in table]
    if "label" not in header:
        return [(row["path"].strip(), None) for row in table]
    if blank := [row["path"] for row, label in zip(table, labels, strict=True) if not label]:
        raise UserError(
            f"{path} has {len(blank):,} rows of {len(table):,} without a label (the first is "
            f"{blank[0]}): label them, or leave out the column label."
        )
    return [(row["path"].strip(), label) for row, label in zip(table, labels, strict=True)]


def _unique(path: str, rows: list[tuple[str, str | None]]) -> dict[str, str | None]:
    """Label by normalised path, each path once, in the order of the rows."""
    labels: dict[str, str | None] = {}
    for entry, label in rows:
        if labels.setdefault(os.path.normpath(entry), label) != label:
            first = labels[os.path.normpath(entry)]
            raise UserError(f"{path} labels {entry} both {first} and {label}: keep one row.")
    return labels


def _not_found(data: str, path: str) -> str:
    """One sentence that says what is missing, with close names where there are any."""
    missing = os.path.abspath(path)
    while not os.path.lexists(parent := os.path.dirname(missing)):
        missing = parent
    try:
        siblings = sorted(os.listdir(parent))[:10_000]
    except OSError:
        siblings = []
    # Only a bare name can have meant the embedded data.
    close = get_close_matches(os.path.basename(missing), siblings, n=2)
    if os.sep not in data and not close:
        close = get_close_matches(data, ["scenes"])
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return (
        f"{data or 'An empty name'} does not exist: expected a folder of images, a text file of "
        f"paths, a CSV with the header path,label, or scenes.{hint}"
    )
