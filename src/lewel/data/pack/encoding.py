"""Encodes an image of a source to the bytes that are packed."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Final, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.io import encode_jpeg

from lewel.data.sources.attached import Attached
from lewel.data.sources.fetched import Fetched
from lewel.data.sources.files import Files
from lewel.data.sources.images import UnreadableImage, decode_image, kind_of, plain_jpeg
from lewel.data.sources.packed import Packed
from lewel.data.sources.source import Source, prefetch
from lewel.data.views.resize import resize

SUFFIXES: Final = {
    "JPEG": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "AVIF": "avif",
    "GIF": "gif",
    "TIFF": "tif",
    "BMP": "bmp",
}
MAX_SIDE: Final = 65_500  # pixels that a side of a JPEG may have; libjpeg fails above


@dataclass(frozen=True)
class Encoding:
    """How images are packed."""

    size: int = 256  # pixels of the shorter side; smaller images stay as they are
    quality: int = 92  # of the JPEG
    keep: bool = False  # pack the original files


class Encoded(NamedTuple):
    """An encoded image, or the reason why there is none."""

    sample: int  # its index in the source
    suffix: str = ""
    data: bytes = b""
    reason: str = ""


class Encoder(Dataset[list[Encoded]]):
    """The images of a source in a given order, encoded in the workers of a loader."""

    def __init__(self, source: Source, order: Sequence[int], encoding: Encoding) -> None:
        self.source, self.order, self.encoding = source, order, encoding

    def __len__(self) -> int:
        return len(self.order)

    def __getitems__(self, places: list[int]) -> list[Encoded]:
        indices = [int(self.order[place]) for place in places]
        prefetch(self.source, indices)
        return [self._encoded(index) for index in indices]

    def _encoded(self, index: int) -> Encoded:
        try:
            suffix, data = encode(self.source, index, self.encoding)
        except UnreadableImage as error:
            return Encoded(index, reason=str(error))
        return Encoded(index, suffix, data)


def encode(source: Source, index: int, encoding: Encoding) -> tuple[str, bytes]:
    """(suffix, bytes) of an image; raises UnreadableImage.

    A JPEG that is small enough is copied, because encoding it again would lose quality. `keep` is
    lossless also for a source without files: as PNG.
    """
    if isinstance(source, Attached):
        kind = source.describe(index).rpartition(".")[2].lower()
        # A sample's own .json has its name.
        return "annotation.json" if kind == "json" else kind, bytes(source.load(index))
    if not isinstance(source, Files | Packed | Fetched):
        image = source.read(index)
        return to_png(image) if encoding.keep else to_jpeg(image, encoding)
    data = source.load(index)
    image = decode_image(data)  # also if its bytes are copied, to find corrupt images now
    small = min(image.shape[1:]) <= encoding.size and plain_jpeg(data)
    # EXIF may rotate the image, which other readers of the shards may ignore.
    if encoding.keep or (small and b"Exif\0" not in data):
        return SUFFIXES[kind_of(data) or "JPEG"], bytes(data)
    return to_jpeg(image, encoding)


def to_jpeg(image: torch.Tensor, encoding: Encoding) -> tuple[str, bytes]:
    """Shrink and encode uint8 (3, H, W) -> (suffix, bytes)."""
    height, width = image.shape[1:]
    if (shorter := min(height, width)) > encoding.size:
        height, width = (max(1, round(n * encoding.size / shorter)) for n in (height, width))
        image = resize(image, height, width)
    if max(height, width) > MAX_SIDE:
        raise UnreadableImage(f"{width} x {height} pixels: a JPEG has at most {MAX_SIDE} a side")
    # The same size and the same error as Pillow's at this quality, in 60 % of the time.
    return "jpg", encode_jpeg(image.contiguous(), encoding.quality).numpy().tobytes()


def to_png(image: torch.Tensor) -> tuple[str, bytes]:
    """Encode uint8 (3, H, W) without loss -> (suffix, bytes)."""
    buffer = BytesIO()
    Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy())).save(buffer, "PNG")
    return "png", buffer.getvalue()
