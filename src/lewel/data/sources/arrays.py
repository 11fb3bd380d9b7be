"""Images in one array, for data sets that are not stored as image files."""

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
        """Pickle the path of a mapped file, not its content: a spawned worker maps it again."""
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
        """The image, uint8 (3, H, W), channels last in memory; grey is repeated to 3 channels."""
        self._check_index(index)
        image = self._pixels[index]
        if image.ndim == 2:
            image = np.repeat(image[:, :, None], 3, axis=2)
        # A copy: the array may be mapped read-only or have another memory layout.
        return torch.from_numpy(np.array(image, order="C")).permute(2, 0, 1)

    def describe(self, index: int) -> str:
        """The split and the index of the image, which has no path."""
        self._check_index(index)
        return f"{self.split}/{index:05}"

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(index)
