"""Every format, mode and orientation, and corrupt files of every kind."""

import errno
import importlib.util
import os
import struct
import warnings
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from lewel.data.sources import images
from lewel.data.sources.images import SUFFIXES, UnreadableImage, read_image

# pytest overrides the filters of the module; test_pillow_never_warns tests without pytest's.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def photo(width: int = 40, height: int = 24) -> Image.Image:
    """A smooth image without symmetry, so that a wrong rotation is detected."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def reference(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


def save(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read_pixels(path: Path) -> np.ndarray:
    """(H, W, 3), after checking type and layout."""
    image = read_image(path)
    assert image.dtype == torch.uint8
    assert image.ndim == 3
    assert image.shape[0] == 3
    assert image.permute(1, 2, 0).is_contiguous()
    return image.permute(1, 2, 0).numpy()


def reason(path: Path) -> str:
    with pytest.raises(UnreadableImage) as caught:
        read_image(path)
    assert str(path) not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_image_is_corrupt_where_files_are_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be replaced by another image, and counted as corrupt."""
    path = save(tmp_path / "a.png", encode(photo(), "PNG"))

    def no_more(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr("builtins.open", no_more)
    with pytest.raises(OSError, match="Too many open files"):
        read_image(path)


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("JPEG", "RGB", {}),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "RGB", {"subsampling": 0}),
        ("JPEG", "RGB", {"keep_rgb": True}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("PNG", "RGB", {}),
        ("PNG", "L", {}),
        ("PNG", "P", {}),
        ("PNG", "1", {}),
        ("WEBP", "RGB", {}),
        ("WEBP", "RGB", {"lossless": True}),
        ("AVIF", "RGB", {}),
        ("BMP", "RGB", {}),
        ("BMP", "L", {}),
        ("BMP", "1", {}),
        ("TIFF", "RGB", {}),
        ("TIFF", "CMYK", {}),
        ("TIFF", "L", {"compression": "tiff_lzw"}),
        ("GIF", "P", {}),
    ],
)
def test_formats_equal_pillow(tmp_path, kind, mode, options):
    path = save(tmp_path / "image", encode(photo().convert(mode), kind, **options))
    assert np.array_equal(read_pixels(path), reference(path).permute(1, 2, 0).numpy())


def test_the_format_is_read_from_the_content_not_the_suffix(tmp_path):
    path = save(tmp_path / "a.png", encode(photo(), "JPEG"))
    assert torch.equal(read_image(str(path)), reference(path))
    assert all(suffix == suffix.lower() for suffix in SUFFIXES)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(tmp_path, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "image", encode(photo(), kind, exif=exif))
    assert np.array_equal(read_pixels(path), reference(path).permute(1, 2, 0).numpy())
    assert read_image(path).shape == ((3, 40, 24) if orientation > 4 else (3, 24, 40))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_does_not_make_an_image_unreadable(tmp_path, kind):
    path = save(tmp_path / "image", encode(photo(), kind, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff"))
    assert read_pixels(path).shape == (24, 40, 3)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled(tmp_path, kind):
    values = np.array([[0, 257, 1000, 32768, 65278, 65535]], dtype=np.uint16)
    pixels = read_pixels(save(tmp_path / "image", encode(Image.fromarray(values), kind)))
    assert np.array_equal(pixels, np.repeat([[[0], [1], [4], [128], [254], [255]]], 3, axis=2))


def test_big_endian_16_bit_tiff(tmp_path):
    image = Image.frombytes("I;16B", (2, 1), b"\x80\x00\xff\xff")
    assert read_pixels(save(tmp_path / "image", encode(image, "TIFF")))[0, :, 0].tolist() == [
        128,
        255,
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_32_bit_tiff_is_scaled_by_its_own_range(tmp_path, dtype):
    values = np.array([[-100, -60, 100]], dtype=dtype)
    pixels = read_pixels(save(tmp_path / "image", encode(Image.fromarray(values), "TIFF")))
    assert pixels[0, :, 1].tolist() == [0, 51, 255]
    flat = Image.fromarray(np.full((2, 2), 7, dtype=dtype))
    assert read_pixels(save(tmp_path / "flat", encode(flat, "TIFF"))).max() == 0


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_alpha_is_composited_on_white(tmp_path, kind):
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    pixels = np.array([[[200, 0, 0, 255], [200, 0, 0, 0], [0, 100, 0, 51]]], dtype=np.uint8)
    path = save(tmp_path / "image", encode(Image.fromarray(pixels), kind, **options))
    assert read_pixels(path).tolist() == [[[200, 0, 0], [255, 255, 255], [204, 224, 204]]]


def test_grey_alpha_is_composited_on_white(tmp_path):
    image = Image.fromarray(np.array([[[90, 255], [0, 0]]], dtype=np.uint8), mode="LA")
    path = save(tmp_path / "image", encode(image, "PNG"))
    assert read_pixels(path).tolist() == [[[90] * 3, [255] * 3]]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_transparent_palette_entry_is_white(tmp_path, kind):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    path = save(tmp_path / "image", encode(image, kind, transparency=1))
    assert read_pixels(path).tolist() == [[[10, 20, 30], [255, 255, 255]]]


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (1, 2, 3)), ("L", 7)])
def test_transparent_colour_of_a_png_is_white(tmp_path, mode, colour):
    image = Image.new(mode, (1, 1), colour)
    path = save(tmp_path / "image", encode(image, "PNG", transparency=colour))
    assert read_pixels(path).tolist() == [[[255] * 3]]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF"])
def test_first_frame(tmp_path, kind):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime")]
    content = encode(
        frames[0], kind, save_all=True, append_images=frames[1:], **lossless_if_webp(kind)
    )
    assert read_pixels(save(tmp_path / "image", content))[0, 0].tolist() == [255, 0, 0]


def lossless_if_webp(kind: str) -> dict[str, object]:
    return {"lossless": True} if kind == "WEBP" else {}


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
@pytest.mark.parametrize("lost", [1, 2, 30, 0.5, 0.98])
def test_truncated_jpeg(tmp_path, options, lost):
    content = encode(photo(200, 150), "JPEG", **options)
    keep = len(content) - (int(lost * len(content)) if lost < 1 else lost)
    path = save(tmp_path / "image", content[:keep])
    assert reason(path) in {"truncated JPEG", "broken JPEG"}


def test_jpeg_whose_tail_was_never_written(tmp_path):
    content = encode(photo(200, 150), "JPEG")
    path = save(tmp_path / "image", content[: len(content) // 2].ljust(len(content), b"\0"))
    assert reason(path) == "truncated JPEG"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize("keep", [12, 20, 40, 0.5])
def test_truncated_file(tmp_path, kind, keep):
    content = encode(photo(200, 150), kind)
    path = save(tmp_path / "image", content[: int(keep * len(content)) if keep < 1 else keep])
    assert reason(path) in {f"truncated {kind}", f"broken {kind}"}


def test_files_that_are_not_images(tmp_path):
    assert reason(save(tmp_path / "empty.jpg", b"")) == "empty file"
    assert reason(save(tmp_path / "page.jpg", b"<!DOCTYPE html>")).startswith("not a JPEG, PNG")
    assert reason(save(tmp_path / "short.jpg", b"\xff")).startswith("not a JPEG, PNG")
    assert reason(tmp_path / "missing.jpg") == "no such file or directory"
    assert reason(tmp_path) == "not a file"
    with pytest.raises(UnreadableImage, match="not a valid path"):
        read_image("nul\0.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    assert reason(tmp_path / "pipe.jpg") == "not a file"


def test_unreadable_file(tmp_path, monkeypatch):
    path = save(tmp_path / "a.jpg", encode(photo(), "JPEG"))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert reason(path) == "permission denied"


def png_of(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99)))


def jpeg_of(width: int, height: int, **options: object) -> bytes:
    content = bytearray(encode(photo(), "JPEG", **options))
    frame = content.find(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(content)


@pytest.mark.parametrize("name", ["jpeg", "progressive", "png", "bmp", "gif"])
def test_decompression_bombs_are_refused_before_decoding(tmp_path, monkeypatch, name):
    # Another package may have lifted Pillow's own limit.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    content = {
        "jpeg": jpeg_of(60_000, 60_000),
        "progressive": jpeg_of(60_000, 60_000, progressive=True),
        "png": png_of(60_000, 60_000),
        "bmp": b"BM" + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0),
        "gif": b"GIF89a" + struct.pack("<HHBBB", 60_000, 60_000, 0, 0, 0)
        + b"," + struct.pack("<HHHHB", 0, 0, 60_000, 60_000, 0) + b"\x02\x01\x00;",
    }[name]  # fmt: skip
    monkeypatch.setattr(Image.Image, "load", None)
    monkeypatch.setattr("lewel.data.sources.images.decode_jpeg", None)
    assert reason(save(tmp_path / "image", content)).startswith("claims 60000 x 60000 pixels")


def test_pillow_limit_in_place(tmp_path):
    assert reason(save(tmp_path / "image", png_of(60_000, 60_000))).startswith("claims more than")


def test_a_jpeg_with_too_many_scans_is_refused(tmp_path):
    content = encode(photo(), "JPEG", progressive=True)
    assert "scans" in reason(save(tmp_path / "image", content[:-2] + b"\xff\xda" * 600))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_random_damage_raises_only_unreadable_image(tmp_path, kind):
    content, random = encode(photo(), kind), np.random.default_rng(1)
    for _ in range(60):
        damaged = bytearray(content)
        for place in random.integers(12, len(content), 4):
            damaged[place] = random.integers(256)
        path = save(tmp_path / "image", bytes(damaged))
        with suppress(UnreadableImage):
            read_pixels(path)


def test_pillow_never_warns(tmp_path, capfd):
    """With a new copy of the module, because pytest overrides the filters of the first."""
    save(tmp_path / "large.png", png_of(12_000, 12_000))
    save(tmp_path / "exif.png", encode(photo(), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01"))
    palette = encode(photo().convert("P"), "PNG", transparency=bytes(range(0, 250, 10)))
    save(tmp_path / "palette.png", palette)
    tiff = encode(photo(200, 150), "TIFF", compression="tiff_lzw")
    save(tmp_path / "half.tif", tiff[: len(tiff) // 2])
    reasons = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        specification = importlib.util.spec_from_file_location("new_copy", images.__file__)
        copied = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(copied)
        for path in sorted(tmp_path.iterdir()):
            try:
                copied.read_image(path)
            except copied.UnreadableImage as error:
                reasons.append(str(error))
    assert reasons == ["broken TIFF", "truncated PNG"]
    assert not caught
    assert capfd.readouterr().err == ""
