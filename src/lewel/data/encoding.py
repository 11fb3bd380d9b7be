"""One image of a source as the bytes that are packed."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Final, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.io import encode_jpeg

from lewel.data.files import Files
from lewel.data.images import UnreadableImage, decode_image, kind_of, plain_jpeg
from lewel.data.packed import Packed
from lewel.data.resize import resize
from lewel.data.sources import Source

SUFFIXES: Final = {
    "JPEG": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "TIFF": "tif",
    "BMP": "bmp",
}
MOST: Final = 65_500  # pixels a side that a JPEG may have; libjpeg dies of more


@dataclass(frozen=True)
class Encoding:
    """How images are packed."""

    size: int = 256  # pixels of the shorter side; smaller images stay as they are
    quality: int = 92  # of the JPEG
    keep: bool = False  # the files' own bytes


class Encoded(NamedTuple):
    """An image in bytes, or why there is none."""

    sample: int  # its index in the source
    suffix: str = ""
    data: bytes = b""
    reason: str = ""


class Encoder(Dataset[list[Encoded]]):
    """The images of a source by their place in an order, encoded in a loader's workers."""

    def __init__(self, source: Source, order: Sequence[int], encoding: Encoding) -> None:
        self.source, self.order, self.encoding = source, order, encoding

    def __len__(self) -> int:
        return len(self.order)

    def __getitems__(self, places: list[int]) -> list[Encoded]:
        return [self._encoded(int(self.order[place])) for place in places]

    def _encoded(self, index: int) -> Encoded:
        try:
            suffix, data = encode(self.source, index, self.encoding)
        except UnreadableImage as error:
            return Encoded(index, reason=str(error))
        return Encoded(index, suffix, data)


def encode(source: Source, index: int, encoding: Encoding) -> tuple[str, bytes]:
    """(suffix, bytes) of an image; raises UnreadableImage.

    A JPEG that is small enough stays as it is: to encode it again would only blur it. `keep` is
    lossless also where a source has no files: as PNG.
    """
    if not isinstance(source, Files | Packed):
        image = source.read(index)
        return to_png(image) if encoding.keep else to_jpeg(image, encoding)
    data = source.load(index)
    image = decode_image(data)  # also where its bytes are kept: a bad image must show now
    small = min(image.shape[1:]) <= encoding.size and plain_jpeg(data)
    # EXIF may turn the picture, which other readers of the shards do not look for.
    if encoding.keep or (small and b"Exif\0" not in data):
        return SUFFIXES[kind_of(data) or "JPEG"], bytes(data)
    return to_jpeg(image, encoding)


def to_jpeg(image: torch.Tensor, encoding: Encoding) -> tuple[str, bytes]:
    """Shrink and encode uint8 (3, H, W) -> (suffix, bytes)."""
    height, width = image.shape[1:]
    if (shorter := min(height, width)) > encoding.size:
        height, width = (max(1, round(n * encoding.size / shorter)) for n in (height, width))
        image = resize(image, height, width)
    if max(height, width) > MOST:
        raise UnreadableImage(f"{width} x {height} pixels are more than JPEG holds ({MOST} a side)")
    # The same bytes' worth and the same error as Pillow's at this quality, in 60 % of its time.
    return "jpg", encode_jpeg(image.contiguous(), encoding.quality).numpy().tobytes()


def to_png(image: torch.Tensor) -> tuple[str, bytes]:
    """Encode uint8 (3, H, W) without loss -> (suffix, bytes)."""
    buffer = BytesIO()
    Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy())).save(buffer, "PNG")
    return "png", buffer.getvalue()
