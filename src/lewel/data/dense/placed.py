"""Image files of an annotated data set, in a folder or in a pack."""

from collections.abc import Sequence

import torch

from lewel.data.dense.packed import read_picture, stamp
from lewel.data.sources.files import Files
from lewel.data.sources.place import Place, local


class PlacedFiles(Files):
    """A source over images of a folder or a pack."""

    def __init__(
        self, root: Place, paths: Sequence[str], *, name: str, classes: tuple[str, ...]
    ) -> None:
        super().__init__(str(root), paths, name=name, classes=classes)
        self.place = root
        self.root = self.root if local(root) is not None else ""  # a pack has no image files

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return read_picture(self.place / self.describe(index))

    def stamp(self, index: int) -> bytes:
        """By which the content of a packed image is known; empty for a file."""
        return stamp(self.place / self.describe(index))
