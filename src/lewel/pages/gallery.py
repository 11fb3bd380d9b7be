"""The data of a gallery of alignment maps, for a picture or a page."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class GalleryView:
    """One view of an image, and the selected maps of it."""

    caption: str  # "input", "view 1", "view 2"
    image: NDArray[np.uint8]  # (S, S, 3)
    maps: NDArray[np.float32]  # (K, h, w), raw: each sums to 1 over its locations


@dataclass(frozen=True)
class GalleryImage:
    """An image in several views."""

    name: str
    views: tuple[GalleryView, ...]
    linked: NDArray[np.uint8] | None = None  # both views with regions that belong together


@dataclass(frozen=True)
class Gallery:
    """Images with the maps selected by a rule."""

    rule: str  # as text
    chosen: tuple[int, ...]  # indices of the K selected maps
    note: str | None  # e.g. that the run's method has no maps of its own
    images: tuple[GalleryImage, ...]
    caption: str = ""  # size and order of the images
    link_note: str | None = None  # what the linked regions are
    trained_on: bool = False  # whether the images are of the training set, for want of others
