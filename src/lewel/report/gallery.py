"""What a gallery of alignment maps shows, before it becomes a picture or a page."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SeenView:
    """One way an image was shown to the network, and the chosen maps of it."""

    caption: str  # "input", "view 1", "view 2"
    image: NDArray[np.uint8]  # (S, S, 3)
    maps: NDArray[np.float32]  # (K, h, w), raw: each sums to 1 over its positions


@dataclass(frozen=True)
class SeenImage:
    """An image by its name, in several views."""

    name: str
    views: tuple[SeenView, ...]


@dataclass(frozen=True)
class Gallery:
    """Images beside the maps that a stated rule has chosen."""

    rule: str  # in words, for the reader
    chosen: tuple[int, ...]  # which of the network's maps, K of them
    note: str | None  # e.g. that the run's method has no maps of its own
    images: tuple[SeenImage, ...]
