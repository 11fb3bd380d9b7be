"""The embedded scenes with their boxes and masks."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lewel.data.dense.boxes import Objects
from lewel.data.dense.instances import Bits, encode, shrink
from lewel.data.sources.scenes import CACHE_BYTES, CLASSES, SIZES, Scene, draw_scene
from lewel.errors import UserError

_WORLD_SEED = 0  # fixed: the data set does not depend on the training seed


class SceneBoxes:
    """Scenes of a split, drawn at one size."""

    name = "scenes"
    classes = CLASSES
    labels = None
    masked = True
    rule = "coco"

    def __init__(self, split: str, size: int, indices: npt.NDArray[np.int64] | None = None) -> None:
        if split not in SIZES:
            raise UserError(f"scenes has no split {split!r}: choose one of {', '.join(SIZES)}.")
        self.split, self.size = split, size
        self.indices = np.arange(SIZES[split]) if indices is None else indices
        self.notes: tuple[str, ...] = ()
        self._cached = len(self.indices) * 8 * size * size <= CACHE_BYTES
        self._cache: dict[int, Scene] = {}

    def __len__(self) -> int:
        return len(self.indices)

    def subset(self, indices: npt.NDArray[np.int64]) -> "SceneBoxes":
        return SceneBoxes(self.split, self.size, self.indices[indices])

    def describe(self, index: int) -> str:
        return f"scenes/{self.split}/{self.indices[index]} at {self.size} px"

    def scene(self, index: int) -> Scene:
        """The scene of an index, cached if all scenes fit into CACHE_BYTES."""
        if (cached := self._cache.get(index)) is not None:
            return cached
        drawn = draw_scene(_WORLD_SEED, self.split, int(self.indices[index]), self.size)
        if self._cached:
            self._cache[index] = drawn
        return drawn

    def read(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.scene(index).image).permute(2, 0, 1)

    def objects(self, index: int) -> Objects:
        scene = self.scene(index)
        return Objects(scene.boxes, scene.classes, np.zeros(len(scene.boxes), np.bool_))

    def counts(self) -> npt.NDArray[np.int64]:
        return np.ones(len(self), np.int64)  # a lower bound: the main object is always visible

    def masks(self, index: int, height: int, width: int) -> Bits:
        return shrink(self.scene(index).masks, height, width)

    def check_masks(self) -> None:
        """All are drawn."""

    def coco_ground_truth(self) -> dict[str, Any]:
        annotations: list[dict[str, Any]] = []
        for index in range(len(self)):
            scene = self.scene(index)
            for box, number, bits, rle in zip(
                scene.boxes, scene.classes, scene.masks, encode(scene.masks), strict=True
            ):
                left, top, right, bottom = map(float, box)
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": index,
                        "category_id": int(number),
                        "bbox": [left, top, right - left, bottom - top],
                        "area": int(bits.sum()),
                        "iscrowd": 0,
                        "segmentation": rle,
                    }
                )
        return {
            "images": [
                {"id": index, "height": self.size, "width": self.size} for index in range(len(self))
            ],
            "annotations": annotations,
            "categories": [{"id": 1 + n, "name": name} for n, name in enumerate(CLASSES)],
        }
