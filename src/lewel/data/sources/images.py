"""Decodes an image file to an upright RGB tensor, or raises the reason why it cannot be read."""

import logging
import os
import stat
import struct
import warnings
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torchvision.io import ImageReadMode, decode_jpeg

from lewel.errors import too_many_files

SUFFIXES: Final = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".gif"}
)

# Pillow's default limit, repeated here because other packages lift Pillow's own.
MAX_PIXELS: Final = 178_956_970
# A progressive JPEG of a few kB can contain thousands of scans, which take minutes to decode;
# encoders write about ten.
MAX_SCANS: Final = 500

CORRUPT_LIMIT: Final = 0.05  # fraction of corrupt images above which work stops
CORRUPT_GRACE: Final = 100  # images read before that fraction is checked

_NO_IMAGE: Final = "not a JPEG, PNG, WebP, AVIF, BMP, TIFF or GIF image"
_BRANDS: Final = {b"avif": "AVIF", b"avis": "AVIF"}  # bytes 8 to 12 of a file of boxes
_ORIENTATION_TAG: Final = 0x0112
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow warns about large images, EXIF and palettes once per file and worker, in the middle of a
# progress bar. A global filter is thread-safe; catch_warnings is not.
warnings.filterwarnings("ignore", module=r"PIL\.")
# Without a handler Python prints Pillow's log on stderr.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class UnreadableImage(Exception):
    """An image that cannot be read; the message is the reason, without the path."""


def read_image(path: str | Path) -> torch.Tensor:
    """Read the image at a path: uint8 (3, H, W) RGB, the right way up, channels last in memory."""
    return decode_image(load_bytes(path))


def decode_image(data: bytearray) -> torch.Tensor:
    """Decode a whole image file: uint8 (3, H, W) RGB, upright, channels last in memory."""
    kind = kind_of(data)
    if kind is None:
        raise UnreadableImage(_NO_IMAGE)
    # torchvision (libjpeg-turbo) is two to three times as fast as Pillow. Pillow decodes the
    # rest: four components (its CMYK conversion is the reference) and unusual headers.
    if plain_jpeg(data):
        return _decode_jpeg(data)
    # PNG stays with Pillow: torchvision 0.29's decoder is no faster on photographs, warns on
    # stderr about common colour profiles, and a damaged file kills the process (segmentation
    # fault in its error path).
    return _decode_with_pillow(data, kind)


def plain_jpeg(data: bytearray) -> bool:
    """Whether this is a grey or RGB JPEG with an ordinary header, which every decoder reads."""
    frame = _jpeg_frame(data) if kind_of(data) == "JPEG" else None
    return frame is not None and frame[1] in (1, 3)


def load_bytes(path: str | Path) -> bytearray:
    """The bytes of an image file."""
    try:
        status = os.stat(path)
        # Opening a named pipe would block for ever.
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableImage("not a file")
        if status.st_size == 0:
            raise UnreadableImage("empty file")
        with open(path, "rb") as file:
            if kind_of(file.read(12)) is None:  # before reading gigabytes of another format
                raise UnreadableImage(_NO_IMAGE)
            file.seek(0)
            data = bytearray(status.st_size)
            if file.readinto(data) != status.st_size:
                raise UnreadableImage("file shrank while it was read")
    except OSError as error:
        if too_many_files(error):  # no fault of this image
            raise
        raise UnreadableImage(_lower(error.strerror or type(error).__name__)) from error
    except ValueError as error:  # a NUL in the path
        raise UnreadableImage("not a valid path") from error
    except MemoryError as error:
        raise UnreadableImage("file too large for the memory") from error
    return data


def kind_of(head: bytes | bytearray) -> str | None:
    """Pillow's name of the format, from the first 12 bytes: suffixes are often wrong."""
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WEBP"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "TIFF"
    if head.startswith(b"BM"):
        return "BMP"
    return _BRANDS.get(bytes(head[8:12])) if head[4:8] == b"ftyp" else None


def _jpeg_frame(data: bytearray) -> tuple[int, int] | None:
    """(pixels, components) of a JPEG's header; None if the header is unusual."""
    position, end = 2, len(data) - 10
    while position <= end and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame
            height, width, components = struct.unpack_from(">HHB", data, position + 5)
            _refuse_bomb(width, height)
            if marker not in (0xC0, 0xC1) and (scans := data.count(b"\xff\xda")) > MAX_SCANS:
                raise UnreadableImage(f"JPEG with {scans:,} scans, more than {MAX_SCANS}")
            return width * height, components
        elif marker >= 0xE0 or marker in (0xC4, 0xCC, 0xDB, 0xDD):  # segments with a length
            position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        else:
            return None
    return None


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise UnreadableImage(f"claims {width} x {height} pixels, more than {MAX_PIXELS:,} in all")


def _decode_jpeg(data: bytearray) -> torch.Tensor:
    """Decode a grey or RGB JPEG with torchvision: uint8 (3, H, W)."""
    encoded = torch.frombuffer(data, dtype=torch.uint8)
    try:
        image: torch.Tensor = decode_jpeg(
            encoded, mode=ImageReadMode.RGB, apply_exif_orientation=True
        )
    except RuntimeError as error:
        # A JPEG without its end-of-image marker counts as truncated, even if only the marker is
        # missing. torchvision checks it. Pillow must not be tried next: other packages set its
        # LOAD_TRUNCATED_IMAGES. Damage inside the image that leaves the marker in place is not
        # detected by any decoder; such files are read, as image viewers do.
        if "truncated" in str(error):
            raise UnreadableImage("truncated JPEG") from error
        return _decode_with_pillow(data, "JPEG")  # for example arithmetic coding
    # A rotated image is a transposed view, on which every later crop would be slow.
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _decode_with_pillow(data: bytearray, kind: str) -> torch.Tensor:
    """Decode the first frame of any supported kind with Pillow: uint8 (3, H, W)."""
    try:
        with Image.open(BytesIO(data), formats=(kind,)) as image:
            _refuse_bomb(*image.size)
            image.load()
            return from_pillow(image)
    except UnreadableImage:
        raise
    except Image.DecompressionBombError as error:
        raise UnreadableImage(f"claims more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise UnreadableImage(f"broken {kind}") from error
    # Pillow raises many types for damaged files: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        truncated = isinstance(error, EOFError) or "truncated" in str(error).lower()
        raise UnreadableImage(f"{'truncated' if truncated else 'broken'} {kind}") from error


def from_pillow(image: Image.Image) -> torch.Tensor:
    """A PIL image as uint8 (3, H, W) RGB, upright, channels last in memory."""
    upright = _upright(_rgb(image), _orientation(image))
    # A copy: Pillow's own memory is read-only.
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


def _orientation(image: Image.Image) -> int:
    """The loaded image's EXIF orientation; none for TIFF, which Pillow rotates on loading."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # damaged EXIF does not make the pixels unusable
        return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def _rgb(image: Image.Image) -> Image.Image:
    """The image in mode RGB; 16- and 32-bit greys are scaled, transparency becomes white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Pillow's own conversion clips at 255, which gives a white image.
        values = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        # 32-bit greys have no defined white level, so the range of the image is used.
        floats = np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0.0, neginf=0.0)
        low, high = float(floats.min()), float(floats.max())
        scaled = (floats - low) * (255.0 / (high - low) if high > low else 0.0)
        image = Image.fromarray(scaled.round().astype(np.uint8))
    elif image.has_transparency_data:
        # The colour of a transparent pixel is arbitrary, often black. White is the background on
        # which browsers and viewers show such images.
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        page.alpha_composite(layer)
        image = page
    return image.convert("RGB")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
