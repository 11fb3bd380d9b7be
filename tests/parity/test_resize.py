"""The antialiased resize of uint8 crops against Pillow's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from lewel.data.views.crop import PHOTOMETRIC_SIZE, ViewDraw, crop_view
from lewel.ops.randomness import generator

SIZES = [
    (64, 64),
    (375, 500),
    (37, 53),
    (8, 8),
    (1, 1),
    (1, 90),
    (90, 1),
    (2, 300),
    (300, 3),
    (224, 97),
    (640, 480),
    (65, 64),
    # sizes at which torch's uint8 kernel differs from Pillow's by two grey levels
    (280, 280),
    (192, 280),
    (176, 238),
    (307, 280),
    (384, 384),
]


def pillow_view(crop: np.ndarray, size: int) -> np.ndarray:
    """(H, W, 3) -> (size, size, 3)."""
    resized = Image.fromarray(crop).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized).astype(np.float64)


def exact_view(crop: np.ndarray, size: int) -> np.ndarray:
    """The same filter without rounding: (H, W, 3) -> (size, size, 3)."""
    image = torch.from_numpy(crop).permute(2, 0, 1)[None].double()
    resized = F.interpolate(image, size=(size, size), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def our_view(
    pixels: np.ndarray, box: tuple[int, int, int, int], size: int, flip: bool, planar: bool
) -> np.ndarray:
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    if planar:
        image = image.contiguous()
    view = crop_view(image, ViewDraw(box, flip, np.zeros(PHOTOMETRIC_SIZE, np.float32)), size)
    assert view.dtype == torch.uint8
    assert view.shape == (3, size, size)
    return view.permute(1, 2, 0).numpy().astype(np.float64)


def content(kind: str, height: int, width: int) -> np.ndarray:
    """White noise, the hardest, or smooth waves: uint8 (H, W, 3)."""
    if kind == "noise":
        return generator(height, width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    rows, columns = np.mgrid[:height, :width] / 9
    waves = [np.sin(rows + phase) * np.cos(columns - phase) for phase in range(3)]
    return (np.stack(waves, axis=-1) * 127.5 + 127.5).round().astype(np.uint8)


@pytest.mark.parametrize("planar", [False, True], ids=["interleaved", "planar"])
@pytest.mark.parametrize("size", [7, 32, 64, 224])
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("kind", ["noise", "waves"])
def test_within_one_grey_level_of_pillow(
    kind: str, height: int, width: int, size: int, planar: bool
) -> None:
    pixels = content(kind, height + 5, width + 3)
    crop = pixels[2 : 2 + height, 1 : 1 + width].copy()
    pillow, exact = pillow_view(crop, size), exact_view(crop, size)
    for flip in (False, True):
        view = our_view(pixels, (2, 1, height, width), size, flip, planar)
        ours = view[:, ::-1] if flip else view
        # Both round twice, each time by up to a half, and so are within 1 of the exact value.
        assert np.abs(ours - exact).max() <= 1.02
        assert np.abs(ours - exact).mean() <= np.abs(pillow - exact).mean() + 0.01
        assert np.abs(ours - pillow).max() <= 1
