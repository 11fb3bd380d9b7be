"""Images of which it is known where the objects are."""

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lewel.data.scenes import Scenes, draw_scene
from lewel.data.sources import Source
from lewel.data.voc import VOC, find_voc


class Masked(Source, Protocol):
    """A source with masks."""

    def mask(self, index: int) -> npt.NDArray[np.uint8]:
        """The class of each pixel of an image, (H, W): 0 is background, 255 is ignored."""


class MaskedScenes(Scenes):
    """Scenes with the masks of their class objects."""

    def mask(self, index: int) -> npt.NDArray[np.uint8]:
        """The class of each pixel, 1 to 10, or 0 for ground and clutter, (S, S)."""
        scene = draw_scene(self.seed, self.split, index, self.size)
        out = np.zeros((self.size, self.size), np.uint8)
        for number, mask in zip(scene.classes.tolist(), scene.masks, strict=True):
            out[mask] = number
        return out


def open_masked(data: str, image_size: int) -> Masked | None:
    """The images for judging of `scenes` or of a Pascal VOC folder; None for other data."""
    if data == "scenes":
        return MaskedScenes("val", size=image_size * 3 // 2, seed=0)  # as `open_data` draws them
    if Path(data).expanduser().is_dir() and find_voc(data) is not None:
        return VOC(data)
    return None
