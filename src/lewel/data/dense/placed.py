"""Image files of an annotated data set, in a folder or in a pack."""

from collections.abc import Sequence

import torch

from lewel.data.dense.packed import read_picture, stamp
from lewel.data.sources.files import Files
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.place import Place, local

Size = tuple[float, float]  # width and height of an image


class PlacedFiles(Files):
    """A source over images of a folder or a pack."""

    def __init__(
        self, root: Place, paths: Sequence[str], *, name: str, classes: tuple[str, ...]
    ) -> None:
        super().__init__(str(root), paths, name=name, classes=classes)
        self.place = root
        self.root = self.root if local(root) is not None else ""  # a pack has no image files

    def stated_size(self, index: int) -> Size | None:
        """The size of an image by its annotations, to which its boxes refer; None if unknown."""
        return None

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage, also for another size than stated."""
        image = read_picture(self.place / self.describe(index))
        stated, own = self.stated_size(index), (image.shape[2], image.shape[1])
        if stated is not None and stated != own:
            raise UnreadableImage(
                f"its annotations are for {stated[0]:g} x {stated[1]:g} pixels, the image has "
                f"{own[0]} x {own[1]}: expected the same size"
            )
        return image

    def stamp(self, index: int) -> bytes:
        """By which the content of a packed image is known; empty for a file."""
        return stamp(self.place / self.describe(index))
