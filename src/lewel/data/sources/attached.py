"""The files of an annotated data set that are packed beside its training images, unchanged."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import torch

from lewel.data.sources.images import SUFFIXES, UnreadableImage, decode_image
from lewel.data.sources.layouts import MASK_SUFFIXES, find_layout, voc_folders
from lewel.data.sources.names import Names
from lewel.data.sources.packed import Packed
from lewel.data.sources.place import below, is_hidden
from lewel.errors import UserError

VOC = {
    "Annotations": (".xml",),
    "ImageSets": (".txt",),
    "SegmentationClass": MASK_SUFFIXES,
    "SegmentationClassAug": MASK_SUFFIXES,
}


class Attached:
    """A source over files of any kind, whose bytes are copied."""

    labels = None
    classes = None

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self.name, self._root, self._paths = root.name, root, Names.of(paths)

    def __len__(self) -> int:
        return len(self._paths)

    @cached_property
    def fingerprint(self) -> str:
        """Of the content: an annotation is often changed without another name."""
        state = hashlib.sha256()
        for index in range(len(self)):
            state.update(self.describe(index).encode("utf-8", "surrogateescape") + b"\0")
            try:
                content = self.load(index)
            except UnreadableImage as error:
                path = self._root / self.describe(index)
                raise UserError(f"{path} cannot be read ({error}): make it readable.") from None
            state.update(hashlib.sha256(content).digest())
        return state.hexdigest()

    def describe(self, index: int) -> str:
        return self._paths[index]

    def load(self, index: int) -> bytearray:
        """The bytes of a file; raises UnreadableImage."""
        try:
            return bytearray((self._root / self.describe(index)).read_bytes())
        except OSError as error:
            raise UnreadableImage((error.strerror or type(error).__name__).lower()) from error

    def read(self, index: int) -> torch.Tensor:
        return decode_image(self.load(index))


class AttachedAgain(Attached):
    """The files that lie in a pack already."""

    def __init__(self, packed: Packed) -> None:
        self.name, self.packed = packed.name, packed
        self.fingerprint = packed.fingerprint

    def __len__(self) -> int:
        return len(self.packed)

    def describe(self, index: int) -> str:
        return self.packed.describe(index)

    def load(self, index: int) -> bytearray:
        return self.packed.load(index)


def attached_files(root: Path, train: Iterable[str]) -> list[str]:
    """The annotations of a folder and its images that are not in `train`, sorted; else empty."""
    json = sorted((root / "annotations").glob("instances_*.json"))
    layout = find_layout(root, root.name)
    if layout is None and not json:
        return []
    found = list(json)
    for year in voc_folders(root):
        for folder, suffixes in VOC.items():
            found += _files(year / folder, suffixes)
    for folders in (("masks",), *((split, "masks") for split in (layout.every if layout else ()))):
        found += _files(root.joinpath(*folders), MASK_SUFFIXES)
    found += [file for file in (root / "classes.txt",) if file.is_file()]
    for folder in layout.every.values() if layout else ():
        found += _files(root / folder, SUFFIXES)
    return sorted({below(file, root) for file in found} - set(train))


def _files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    kinds = set(suffixes)
    files = (file for file in folder.rglob("*") if file.suffix.lower() in kinds and file.is_file())
    return [file for file in files if not is_hidden(below(file, folder))]
