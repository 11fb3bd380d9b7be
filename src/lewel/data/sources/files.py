"""Images in files: the source of folders and lists."""

import copy
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lewel.data.sources.file_list import Images, read_list
from lewel.data.sources.images import load_bytes, read_image
from lewel.data.sources.names import Names
from lewel.errors import RunError


class Files:
    """A source over image files; paths are relative to the root, or absolute."""

    fingerprint: str | None = None  # of the paths, where it is known

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
        self._paths = Names.of(paths)
        self._list: Path | None = None  # that the paths are mapped from

    @classmethod
    def found(cls, root: str, images: Images, name: str, labelled: bool) -> "Files":
        """A source over what `find_images` found, its groups as classes or without labels."""
        files = cls(root, [], name=name, classes=images.groups if labelled else None)
        files._take(images)
        files._list, files.fingerprint = images.file, images.digest
        return files

    def _take(self, images: Images) -> None:
        self._paths = images.names
        self.labels = None if self.classes is None else images.labels

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the path of a list, not its content: a spawned worker maps it again."""
        mapped = self._list is not None
        return self.__dict__ | ({"_paths": None, "labels": None} if mapped else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._list is not None:
            images = read_list(self._list, self.root, checked=False)
            if images is None or images.digest != self.fingerprint:
                raise RunError(
                    f"{self._list} was changed while it was used: run the same command again."
                )
            self._take(images)

    def __len__(self) -> int:
        return len(self._paths)

    def without_labels(self) -> "Files":
        """The same images without labels and classes."""
        other = copy.copy(self)
        other.labels, other.classes = None, None
        return other

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return read_image(os.path.join(self.root, self.describe(index)))

    def load(self, index: int) -> bytearray:
        """The file's bytes as they are; raises UnreadableImage."""
        return load_bytes(os.path.join(self.root, self.describe(index)))

    def describe(self, index: int) -> str:
        """The path as it was given: relative to the root, or absolute."""
        return self._paths[index]
