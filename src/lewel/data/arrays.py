"""Images in one array: the source behind data sets that do not come as image files."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class Arrays:
    """A source over uint8 pixels (N, H, W, 3), or grey ones (N, H, W)."""

    def __init__(
        self,
        pixels: npt.NDArray[np.uint8],
        *,
        name: str,
        split: str,
        labels: npt.ArrayLike | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.name, self.split, self.classes = name, split, classes
        self.labels = None if labels is None else np.asarray(labels, np.int64)
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def __getstate__(self) -> dict[str, Any]:
        """With a mapped file's name instead of its gigabytes: a spawned worker maps it again."""
        state, pixels = dict(self.__dict__), self._pixels
        if isinstance(pixels, np.memmap):
            state["_pixels"] = (str(pixels.filename), pixels.shape, pixels.strides)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._pixels, tuple):
            path, shape, strides = self._pixels
            mapped = np.memmap(path, np.uint8, "r")
            self._pixels = np.ndarray(shape, np.uint8, mapped, 0, strides)

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W), channels last in memory; a grey one three times."""
        self._check_index(index)
        image = self._pixels[index]
        if image.ndim == 2:
            image = np.repeat(image[:, :, None], 3, axis=2)
        # A copy, for the array may be mapped read-only or be in another order.
        return torch.from_numpy(np.array(image, order="C")).permute(2, 0, 1)

    def describe(self, index: int) -> str:
        """The image's place in its split, for it has no path."""
        self._check_index(index)
        return f"{self.split}/{index:05}"

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(index)
