"""The preprocessing of evaluations: the whole image at the size of the network, normalised."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from lewel.data.sources.images import UnreadableImage, from_pillow, read_image
from lewel.data.views.resize import resize
from lewel.errors import UserError
from lewel.files import user_path

Picture = str | PathLike[str] | Image.Image | Tensor


def resized_side(size: int) -> int:
    """The shorter side before the crop: 8/7 of the size, 256 px for 224."""
    return round(size * 8 / 7)


def whole_view(image: Tensor, size: int) -> Tensor:
    """An image as it is evaluated: uint8 (3, H, W) -> (3, S, S).

    The shorter side is resized to 8/7 of the size and the centre is cropped (256 and 224 in the
    paper); an image of (S, S) stays unchanged.
    """
    height, width = image.shape[1:]
    if (height, width) == (size, size):
        return image
    side, shorter = min(height, width), resized_side(size)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[:, top : top + side, left : left + side]
    resized = resize(square, shorter, shorter)
    edge = (shorter - size) // 2
    return resized[:, edge : edge + size, edge : edge + size]


def preprocessing(size: int) -> dict[str, Any]:
    """What `Transform` does, for card.json; mean and std are beside it."""
    return {
        "function": "lewel.transform",
        "shorter_side": resized_side(size),
        "interpolation": "bilinear, antialiased",
        "centre_crop": size,
        "unchanged": f"images of {size} x {size} px are neither resized nor cropped",
        "values": "RGB / 255, minus mean, divided by std",
    }


@dataclass(frozen=True)
class Transform:
    """Images as a backbone takes them: (B, 3, S, S), equal to what `lewel embed` computes with.

    Call it with one image or a list of them. An image is a file's path, a PIL image, or a tensor
    uint8 (3, H, W). `one` gives (3, S, S), for torchvision's data sets.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Picture | Sequence[Picture]) -> Tensor:
        if isinstance(images, str | PathLike | Image.Image | Tensor):
            images = [images]
        return torch.stack([self.one(image) for image in images])

    def one(self, image: Picture) -> Tensor:
        """One image as float32 (3, S, S)."""
        pixels = whole_view(_pixels(image), self.size).float() / 255
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std


def _pixels(image: Picture) -> Tensor:
    """An image as uint8 (3, H, W)."""
    if isinstance(image, str | PathLike):
        try:
            return read_image(user_path(image))
        except UnreadableImage as error:
            raise UserError(f"{fspath(image)} cannot be read as an image: {error}.") from None
    if isinstance(image, Image.Image):
        return from_pillow(image)
    if isinstance(image, Tensor) and image.dtype == torch.uint8 and image.shape[:-2] == (3,):
        return image
    about = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image)
    raise UserError(
        f"{about} is not an image: expected a path, a PIL image, or a tensor uint8 (3, H, W)."
    )
