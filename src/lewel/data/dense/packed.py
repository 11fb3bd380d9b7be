"""Packs with masks and boxes: their files, found by the paths that they had in the data set."""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import numpy as np
import torch

from lewel.data.pack.format import ANNOTATIONS, read_index
from lewel.data.pack.storage import Storage
from lewel.data.pack.stores import open_store
from lewel.data.pack.urls import is_url, shown
from lewel.data.sources.images import SUFFIXES, UnreadableImage, decode_image, read_image
from lewel.data.sources.layouts import find_layout
from lewel.data.sources.packed import Packed, is_packed
from lewel.data.sources.place import Place
from lewel.data.sources.scan import suffix_of
from lewel.data.sources.source import Subset
from lewel.errors import UserError
from lewel.files import user_path


class Tree:
    """All files of a packed data set by their paths, and its folders.

    Corrupt images are not in the shards, but are files of the data set as in its folder.
    """

    def __init__(self, sources: list[Packed], corrupt: dict[str, str]) -> None:
        self.sources, self.corrupt = sources, corrupt
        self.files: dict[str, tuple[int, int]] = {}  # source and index
        self.folders: dict[str, dict[str, None]] = {"": {}}
        for number, source in enumerate(sources):
            for index in range(len(source)):
                path = source.describe(index)
                self.files[path] = (number, index)
                self._add(path)
        for path in corrupt:
            self._add(path)

    def _add(self, path: str) -> None:
        while path:
            folder, _, name = path.rpartition("/")
            known = folder in self.folders
            self.folders.setdefault(folder, {})[name] = None
            if known:
                return
            path = folder

    def load(self, path: str) -> bytearray:
        """The bytes of a file; raises FileNotFoundError, UnreadableImage."""
        if path in self.corrupt:
            raise UnreadableImage(self.corrupt[path])
        if path not in self.files:
            raise FileNotFoundError(2, "no such file in the pack", path)
        source, index = self.files[path]
        return self.sources[source].load(index)

    def checksum(self, path: str) -> int:
        """The checksum of a file, as the index has it; 0 for a corrupt image."""
        if path in self.corrupt:
            return 0
        source, index = self.files[path]
        return self.sources[source].checksum(index)


class PackedPath:
    """A file or folder of a packed data set; `top` is the name of the data set's folder."""

    def __init__(self, tree: Tree, top: str, path: str = "") -> None:
        self.tree, self.top, self.path = tree, top, path
        self._pure = PurePosixPath(top, path)

    def __str__(self) -> str:
        return str(self._pure)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "PackedPath") -> bool:
        return self._pure < other._pure

    def __truediv__(self, key: str) -> "PackedPath":
        path = os.path.normpath(os.path.join(self.path, key))
        return PackedPath(self.tree, self.top, "" if path == "." else path)

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def parent(self) -> "PackedPath":
        return PackedPath(self.tree, self.top, self.path.rpartition("/")[0])

    def resolve(self) -> "PackedPath":
        return self

    def is_file(self) -> bool:
        return self.path in self.tree.files or self.path in self.tree.corrupt

    def is_dir(self) -> bool:
        return self.path in self.tree.folders

    def glob(self, pattern: str) -> Iterator["PackedPath"]:
        first, _, rest = pattern.partition("/")
        for name in list(self.tree.folders.get(self.path, ())):
            if fnmatchcase(name, first):
                found = self / name
                yield from found.glob(rest) if rest else (found,)

    def rglob(self, pattern: str) -> Iterator["PackedPath"]:
        for name in list(self.tree.folders.get(self.path, ())):
            found = self / name
            if fnmatchcase(name, pattern):
                yield found
            yield from found.rglob(pattern)

    def read_bytes(self) -> bytes:
        """All bytes; raises FileNotFoundError, UserError where they cannot be read."""
        try:
            return bytes(self.tree.load(self.path))
        except UnreadableImage as error:
            raise UserError(f"{self} of a pack cannot be read: {error}.") from None


def read_picture(place: Place) -> torch.Tensor:
    """An image of a folder or a pack, uint8 (3, H, W); raises UnreadableImage."""
    if not isinstance(place, PackedPath):
        return read_image(str(place))
    try:
        return decode_image(place.tree.load(place.path))
    except FileNotFoundError:
        raise UnreadableImage("no such file in the pack") from None


def stamp(*places: Place) -> bytes:
    """The checksums of packed files, by which their content is known; empty for a folder."""
    packed = [one for one in places if isinstance(one, PackedPath)]
    return b" ".join(str(one.tree.checksum(one.path)).encode() for one in packed)


def data_root(data: str, storage: Storage) -> Place:
    """The folder of a data set, or its pack's; raises UserError for one without annotations."""
    found = packed_root(data, storage)
    if isinstance(found, PackedPath):
        return found
    if found:
        raise UserError(
            f"{shown(data)} was packed without masks and boxes: pack a folder of Pascal VOC, COCO, "
            "or images/ and masks/, without --images-only."
        )
    return user_path(data)


def packed_root(data: str, storage: Storage) -> PackedPath | bool:
    """The folder of a packed data set; True for a pack without annotations, False for no pack."""
    if not is_url(data) and not is_packed(str(user_path(data))):
        return False
    store = open_store(data, storage)
    index = read_index(store, shown(data))
    if ANNOTATIONS not in index.shards:
        return True
    splits = [
        Packed(
            store,
            shards,
            index.tables[split],
            name=index.name,
            labels=index.labels[split],
            classes=None if index.labels[split] is None else index.classes,
        )
        for split, shards in index.shards.items()
    ]
    return PackedPath(Tree(splits, index.corrupt), index.folder or index.name)


def annotated_splits(data: str, storage: Storage) -> dict[str, Subset]:
    """All images of an annotated pack by split, in the order of their paths; else empty."""
    root = packed_root(data, storage)
    layout = find_layout(root, root.name) if isinstance(root, PackedPath) else None
    found: dict[str, Subset] = {}
    if layout is None or not isinstance(root, PackedPath):
        return found
    tree, folders = root.tree, list[str]()
    for split, folder in layout.every.items():
        names = sorted(
            name
            for name in tree.files
            if name.startswith(f"{folder}/") and suffix_of(name) in SUFFIXES
        )
        places = [tree.files[name] for name in names]
        if names and folder not in folders:
            source = tree.sources[places[0][0]]  # a folder is packed into one set of shards
            found[split] = Subset(source, np.array([index for _, index in places]))
            folders.append(folder)
    return found
