"""Random draws of a view, and its geometric part: crop, resize and flip of uint8 pixels."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from lewel.data.views.resize import resize

# The columns of a photometric draw, as `lewel.data.views.augment.augment_colours` reads them.
BRIGHTNESS: Final = 0  # the column of a factor is also the number of its operation
CONTRAST: Final = 1
SATURATION: Final = 2
HUE: Final = 3  # a shift in turns of the colour circle, -0.5 to 0.5
ORDER: Final = slice(4, 8)  # the operation (0-3) at each of the four places, or SKIP
GREY: Final = 8  # 1 or 0
BLUR_SIGMA: Final = 9  # in pixels; 0 is no blur
SOLARISE: Final = 10  # 1 or 0
PHOTOMETRIC_SIZE: Final = 11
SKIP: Final = -1

_TRIES = 10  # torchvision's number of attempts at a box before the central fallback
_UNIFORMS = 2 * _TRIES + 16


@dataclass(frozen=True)
class ViewRecipe:
    """How one view is drawn from an image; the defaults are BYOL's first view."""

    crop_scale: tuple[float, float] = (0.2, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_probability: float = 0.8
    grey: float = 0.2
    blur: float = 1.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarise: float = 0.0
    size: int | None = None  # side of the view in pixels; None is the network's input size


class ViewDraw(NamedTuple):
    """What was drawn for one view."""

    box: tuple[int, int, int, int]  # top, left, height, width in pixels of the image
    flip: bool
    photometric: np.ndarray  # float32 (PHOTOMETRIC_SIZE,)


def draw_view(
    recipe: ViewRecipe, height: int, width: int, generator: np.random.Generator
) -> ViewDraw:
    """Draw one view of an image of height x width pixels."""
    # A fixed number of uniforms, each with a fixed use: no decision shifts the draws of another,
    # and neither does a new column at the end.
    uniforms: list[float] = generator.random(_UNIFORMS).tolist()
    box = _draw_box(recipe, height, width, uniforms[: 2 * _TRIES + 2])
    flip, jitter, grey, blur, sigma, solarise, *factors_and_order = uniforms[2 * _TRIES + 2 :]
    return ViewDraw(
        box=box,
        flip=flip < recipe.flip,
        photometric=np.array(
            [
                *_draw_factors(recipe.jitter, factors_and_order[:4]),
                *_draw_order(recipe, jitter, factors_and_order[4:]),
                float(grey < recipe.grey),
                _between(recipe.blur_sigma, sigma) if blur < recipe.blur else 0.0,
                float(solarise < recipe.solarise),
            ],
            dtype=np.float32,
        ),
    )


def crop_view(image: torch.Tensor, draw: ViewDraw, size: int) -> torch.Tensor:
    """Cut the drawn box, resize it with antialiasing, flip it: uint8 (3, H, W) -> (3, size, size).

    The view has the strides of a permuted (size, size, 3) image: stacking the views copies them
    anyway.
    """
    top, left, height, width = draw.box
    crop = image[:, top : top + height, left : left + width]
    view = resize(crop, size, size)
    if draw.flip:
        return view.flip(2)
    return view.clone() if view is crop else view  # a copy: a source may cache the image


def _draw_box(
    recipe: ViewRecipe, height: int, width: int, uniforms: list[float]
) -> tuple[int, int, int, int]:
    """Torchvision's random resized crop, from 2 uniforms per try and 2 for the location."""
    log_ratio = (math.log(recipe.crop_ratio[0]), math.log(recipe.crop_ratio[1]))
    *tries, vertical, horizontal = uniforms
    for scale, shape in zip(tries[::2], tries[1::2], strict=True):
        area = height * width * _between(recipe.crop_scale, scale)
        ratio = math.exp(_between(log_ratio, shape))
        box_width = round(math.sqrt(area * ratio))
        box_height = round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(vertical * (height - box_height + 1))
            left = int(horizontal * (width - box_width + 1))
            return top, left, box_height, box_width
    narrowest, widest = recipe.crop_ratio
    box_height, box_width = height, width
    if width < narrowest * height:
        box_height = max(1, round(width / narrowest))
    elif width > widest * height:
        box_width = max(1, round(height * widest))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _draw_factors(
    jitter: tuple[float, float, float, float], uniforms: list[float]
) -> tuple[float, float, float, float]:
    brightness, contrast, saturation, hue = jitter
    return (
        _between((max(0.0, 1 - brightness), 1 + brightness), uniforms[BRIGHTNESS]),
        _between((max(0.0, 1 - contrast), 1 + contrast), uniforms[CONTRAST]),
        _between((max(0.0, 1 - saturation), 1 + saturation), uniforms[SATURATION]),
        _between((-hue, hue), uniforms[HUE]),
    )


def _draw_order(recipe: ViewRecipe, chosen: float, uniforms: list[float]) -> list[int]:
    """A random order of the four operations; SKIP for those that would change nothing."""
    if chosen >= recipe.jitter_probability:
        return [SKIP] * 4
    order = sorted(range(4), key=uniforms.__getitem__)
    return [operation if recipe.jitter[operation] > 0 else SKIP for operation in order]


def _between(bounds: tuple[float, float], uniform: float) -> float:
    low, high = bounds
    return low + (high - low) * uniform
