"""Tar files of other tools in WebDataset's format, as a source that can be packed."""

import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from lewel.data.pack.stores import REQUESTS, Extent, Store
from lewel.data.sources.fetched import Fetched
from lewel.data.sources.images import SUFFIXES
from lewel.data.sources.layouts import TRAIN, VALIDATION_SPLITS
from lewel.errors import UserError
from lewel.ops.ranks import gather_objects, rank, ranks

WINDOW: Final = 64 * 1024  # bytes that are read around a header
MOST_CLASSES: Final = 1_000_000  # numbers above are names of classes
NO_LABEL: Final = re.compile(r"-\d+|")  # a .cls that is empty or negative
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")  # of a member: the sample's key and its kind


class Sample(NamedTuple):
    """An image of a tar file."""

    name: str
    offset: int
    size: int
    label: str | None  # the text of its .cls
    others: tuple[str, ...]  # images of the same sample, which are left out


class Window(io.RawIOBase):
    """A file of a store; a read takes a window, which often holds the next header too."""

    def __init__(self, store: Store, file: str) -> None:
        self._store, self._file = store, file
        self._end, self._position = store.size(file), 0
        self._start, self._data = 0, b""

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._end if size < 0 else min(self._end, self._position + size)
        if not self._start <= self._position <= end <= self._start + len(self._data):
            last = min(self._end, max(end, self._position + WINDOW))
            extent = Extent(self._file, self._position, last)
            self._data = b"" if self._position >= last else bytes(self._store.read_range(extent))
            self._start = self._position
        found = self._data[self._position - self._start : end - self._start]
        self._position += len(found)
        return found


def open_tars(
    store: Store, files: Sequence[str], name: str, notes: list[str]
) -> tuple[Fetched, Fetched | None]:
    """The training set of some tar files, and the validation set that their names tell."""
    found = scan_tars(store, files)
    apart = {file for file in files if _split(file) in VALIDATION_SPLITS}
    apart = apart if len(apart) < len(files) else set()
    train = [file for file in files if file not in apart]
    first, val = _labelled_split(files, apart, found)
    classes = _classes([one.label for file in (*train, *val) for one in found[file]])
    own = _source(store, train, found, name, classes)
    if not len(own):
        raise UserError(
            f"{name} holds no image: {len(files):,} tar files were read; expected .jpg, .png, "
            ".webp, .avif, .bmp, .tif or .gif members."
        )
    notes.append(f"{name} has {len(train):,} tar files: {len(own):,} images for training.")
    if classes is None:
        notes.append(
            f"{name} has images without a .cls, or with a negative one: they have no labels."
        )
    if unused := sorted(apart - set(val)):
        notes.append(
            f"{len(unused):,} tar files for validation without labels for all images, or beside "
            f"another set, are left out, for example {unused[0]}."
        )
    if others := [other for file in (*train, *val) for one in found[file] for other in one.others]:
        notes.append(
            f"{len(others):,} images beside another of their sample are left out, for example "
            f"{others[0]}."
        )
    if not val or classes is None:
        return own, None
    held = _source(store, val, found, name, classes)
    notes.append(f"{name} has tar files called {first}: {len(held):,} images for validation.")
    return own, held


def _labelled_split(
    files: Sequence[str], apart: set[str], found: dict[str, list[Sample]]
) -> tuple[str, list[str]]:
    """The first of the validation splits whose images all have labels, and its tar files."""
    for split in VALIDATION_SPLITS:
        own = [file for file in files if file in apart and _split(file) == split]
        labels = [one.label for file in own for one in found[file]]
        if labels and None not in labels:
            return split, own
    return "", []


def scan_tars(store: Store, files: Sequence[str]) -> dict[str, list[Sample]]:
    """The images of each tar file; the ranks share the files."""
    mine = files[rank() :: ranks()]
    with ThreadPoolExecutor(REQUESTS) as threads:
        found = list(threads.map(lambda file: list(samples(store, file)), mine))
    own = list(zip(mine, found, strict=True))
    return dict(gather_objects(own))


def samples(store: Store, file: str) -> Iterator[Sample]:
    """The images of one tar file, each with the label of its sample."""
    try:
        window = Window(store, file)
        end = window.seek(0, io.SEEK_END)
        window.seek(0)
        with tarfile.open(fileobj=window, mode="r:") as tar:
            key, images, labels = "", list[tarfile.TarInfo](), dict[str, str]()
            files: dict[str, tarfile.TarInfo] = {}  # by name, for links
            for member in tar:
                matched = _NAME.fullmatch(member.name)
                if matched is None or not (member.isfile() or _is_image_link(member)):
                    continue
                if member.islnk() or member.issym():
                    member.offset_data, member.size = _linked(member, files)
                files[member.name] = member
                if member.offset_data + member.size > end:
                    raise tarfile.ReadError(f"{member.name} ends after the file")
                if matched.group(1) != key:
                    yield from _images(file, key, images, labels)
                    key, images, labels = matched.group(1), [], {}
                stem, suffix = os.path.splitext(member.name)
                if suffix.lower() in SUFFIXES:
                    images.append(member)
                elif suffix.lower() == ".cls":
                    window.seek(member.offset_data)
                    text = window.read(member.size).decode("utf-8", "replace").strip()
                    labels[stem] = text
            window.seek(tar.offset)
            if window.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # of zeros, at its end
                raise tarfile.ReadError("its end is missing")
            if any(window.read(WINDOW)):
                raise tarfile.ReadError("more follows after its end, as in tar files joined to one")
            yield from _images(file, key, images, labels)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist: correct the names of the tar files.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error}).") from None
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"{file} cannot be read as a tar file ({error}): copy it again.") from None


def _is_image_link(member: tarfile.TarInfo) -> bool:
    suffix = os.path.splitext(member.name)[1].lower()
    return (member.islnk() or member.issym()) and suffix in SUFFIXES


def _linked(member: tarfile.TarInfo, files: dict[str, tarfile.TarInfo]) -> tuple[int, int]:
    """Where the data of a link lie, and their size."""
    folder = "" if member.islnk() else os.path.dirname(member.name)
    name = os.path.normpath(os.path.join(folder, member.linkname))
    if name not in files:
        raise tarfile.ReadError(f"{member.name} is a link to {member.linkname}, which is not in it")
    return files[name].offset_data, files[name].size


def _images(
    file: str, key: str, images: list[tarfile.TarInfo], labels: dict[str, str]
) -> Iterator[Sample]:
    """The images among the members that share a key.

    x.jpg is the image of the sample x, and x.mask.png another of its members. Without a name of
    this form (x.1.jpg, x.2.jpg) each is an image of its own.
    """
    stems = [os.path.splitext(one.name)[0] for one in images]
    chosen = [one for one, stem in zip(images, stems, strict=True) if "." not in _base(stem)][:1]
    others = tuple(f"{file}/{one.name}" for one in images if chosen and one is not chosen[0])
    for one in chosen or images:
        stem = os.path.splitext(one.name)[0]
        label = labels.get(stem, labels.get(key, ""))
        known = None if NO_LABEL.fullmatch(label) else label
        yield Sample(f"{file}/{one.name}", one.offset_data, one.size, known, others)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _split(file: str) -> str | None:
    """The split that the name of a tar file tells, if it does."""
    words = re.split(r"[^a-z]+", file.lower())
    return next((word for word in words if word in (TRAIN, *VALIDATION_SPLITS)), None)


def _classes(labels: Sequence[str | None]) -> tuple[str, ...] | None:
    """The classes of all labels; None where an image has none."""
    found = set(labels)
    known = sorted(label for label in found if label is not None)
    if None in found or not known:
        return None
    if all(label.isdecimal() and int(label) < MOST_CLASSES for label in known):
        return tuple(str(number) for number in range(1 + max(int(label) for label in known)))
    return tuple(known)


def _source(
    store: Store,
    files: Sequence[str],
    found: dict[str, list[Sample]],
    name: str,
    classes: tuple[str, ...] | None,
) -> Fetched:
    every = [(number, one) for number, file in enumerate(files) for one in found[file]]
    places = np.array([(at, one.offset, one.size) for at, one in every], np.int64).reshape(-1, 3)
    labels = None
    if classes is not None:
        numbers = {text: number for number, text in enumerate(classes)}
        labels = [_number(str(one.label), numbers) for _, one in every]
    names = [one.name for _, one in every]
    return Fetched(
        store, files, name=name, labels=labels, classes=classes, places=places, names=names
    )


def _number(label: str, numbers: dict[str, int]) -> int:
    return numbers[label] if label in numbers else numbers[str(int(label))]  # 007 is 7
