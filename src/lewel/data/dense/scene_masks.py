"""The embedded scenes with a class for each pixel."""

import numpy as np
import torch
from torch import Tensor

from lewel.data.sources.scenes import CLASSES as FIGURES
from lewel.data.sources.scenes import SIZES, draw_scene
from lewel.data.sources.source import Labels

VALIDATION_SCENES = 500


class SceneMasks:
    """Scenes with the class of each pixel; 0 is the background."""

    name = "scenes"
    labels: Labels | None = None

    def __init__(self, split: str, size: int, length: int | None = None) -> None:
        draw_scene(0, split, 0, size)  # raises UserError where it cannot be drawn
        self.classes: tuple[str, ...] | None = ("background", *FIGURES)
        self.split, self.size = split, size
        self.length = SIZES[split] if length is None else length

    def __len__(self) -> int:
        return self.length

    def read(self, index: int) -> Tensor:
        return self.pair(index)[0]

    def describe(self, index: int) -> str:
        return f"scenes/{self.split}/{index}"

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        scene = draw_scene(0, self.split, index, self.size)
        mask = np.zeros((self.size, self.size), np.uint8)
        for number, visible in zip(scene.classes, scene.masks, strict=True):
            mask[visible] = number
        return torch.from_numpy(scene.image).permute(2, 0, 1), torch.from_numpy(mask)
