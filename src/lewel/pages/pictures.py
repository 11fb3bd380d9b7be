"""Pictures inside a page: data URIs of images, and overlays of maps."""

import base64
from functools import lru_cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

# From low to high; lightness rises evenly, so that it is readable in grey and if colour-blind.
ANCHORS = (
    (13, 8, 40),
    (78, 18, 112),
    (160, 38, 110),
    (226, 84, 66),
    (250, 158, 42),
    (252, 250, 170),
)
STRENGTH = 0.5  # opacity of the map in an overlay
SMALL_FILE = 150_000  # bytes up to which a PNG is embedded unchanged


@lru_cache(maxsize=1)
def ramp() -> Pixels:
    """The colours of 256 values, (256, 3)."""
    at, anchors = np.linspace(0, 255, len(ANCHORS)), np.array(ANCHORS, dtype=np.float64)
    channels = [np.interp(np.arange(256), at, anchors[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def quantise(maps: NDArray[np.float32]) -> tuple[Pixels, NDArray[np.float32]]:
    """Maps (K, h, w), each scaled from its lowest to its highest value to 0-255; ranges (K, 2)."""
    maps = np.nan_to_num(np.asarray(maps, dtype=np.float32))
    low, high = maps.min(axis=(1, 2)), maps.max(axis=(1, 2))
    span = np.where(high > low, high - low, 1)[:, None, None]
    scaled = (maps - low[:, None, None]) / span * 255
    return scaled.round().astype(np.uint8), np.stack([low, high], axis=1)


def overlay(image: Pixels, levels: Pixels, side: int) -> Image.Image:
    """A map's levels (h, w) in colour over an image (S, S, 3), as a picture of `side` pixels."""
    under = Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)
    # Interpolate values, not colours: a mean of two colours would stand for another value.
    fine = Image.fromarray(levels).resize((side, side), Image.Resampling.BILINEAR)
    return Image.blend(under.convert("RGB"), Image.fromarray(ramp()[np.asarray(fine)]), STRENGTH)


def shrunk(image: Image.Image, side: int) -> Image.Image:
    """A picture whose longer side is at most `side` pixels."""
    image = image.convert("RGB")
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return image


def data_uri(image: Image.Image, quality: int, exact: bool = False) -> str:
    """A picture as a data URI, in JPEG, or in PNG if `exact`."""
    buffer = BytesIO()
    kind = "PNG" if exact else "JPEG"
    image.save(buffer, kind, quality=quality)
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"


def file_uri(content: bytes, side: int, quality: int) -> str | None:
    """A picture file as a data URI, shrunk if it is large; None for a damaged file."""
    image = open_picture(content)
    if image is None:
        return None
    if image.format == "PNG" and len(content) <= SMALL_FILE and max(image.size) <= side:
        return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return data_uri(shrunk(image, side), quality)


def open_picture(content: bytes) -> Image.Image | None:
    """The picture in a file's bytes; None if it is damaged."""
    try:
        image = Image.open(BytesIO(content))
        image.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return image
