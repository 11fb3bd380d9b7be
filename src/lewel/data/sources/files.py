"""Images in files: the source of folders and lists."""

import copy
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from lewel.data.sources.images import load_bytes, read_image
from lewel.data.sources.names import Names


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
        self._paths = Names.of(paths)

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
