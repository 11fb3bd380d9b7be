"""Images for maps: the whole image and two training views with their crop boxes."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import Source
from lewel.data.views.loader import TwoViews, finish_views
from lewel.data.views.transform import whole_view
from lewel.errors import RunError

CPU = torch.device("cpu")


class MapViews(NamedTuple):
    """B images and two views of each, with crop boxes and flips."""

    whole: Tensor  # float32 (B, 3, S, S) of 0 to 1, as the views
    views: list[Tensor]  # (B, 3, S, S) each, as training makes them
    boxes: list[Tensor]  # int64 (B, 4) each: top, left, height, width in pixels of the image
    flips: list[Tensor]  # bool (B,) each
    sizes: Tensor  # int64 (B, 2): height and width of the images


class _Held:
    """Images of a source, read once and kept."""

    labels, classes = None, None

    def __init__(self, source: Source, indices: list[int]) -> None:
        self.source, self.name = source, source.name
        self.images: dict[int, Tensor] = {}
        for index in indices:
            try:
                self.images[index] = source.read(index)
            except UnreadableImage as error:
                raise RunError(
                    f"{source.describe(index)} is corrupt ({error}): repair or remove it."
                ) from None

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Tensor:
        return self.images[index]

    def describe(self, index: int) -> str:
        return self.source.describe(index)


def make_views(dataset: TwoViews, indices: np.ndarray, epoch: int = 0) -> MapViews:
    """The images of these indices, in the same views that training draws in an epoch."""
    wanted: list[int] = indices.tolist()
    held = _Held(dataset.source, wanted)
    views = TwoViews(held, dataset.recipes, dataset.size, dataset.seed)
    batch = views.__getitems__([(epoch, index) for index in wanted])
    whole = torch.stack([whole_view(held.read(index), dataset.size) for index in wanted])
    return MapViews(
        whole=whole.float() / 255,
        views=finish_views(batch, CPU, (0.0,) * 3, (1.0,) * 3),
        boxes=batch.boxes,
        flips=batch.flips,
        sizes=torch.tensor([list(held.read(index).shape[1:]) for index in wanted]),
    )
