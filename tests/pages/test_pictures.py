"""Pictures inside a page."""

import base64
from io import BytesIO

import numpy as np
from PIL import Image

from lewel.pages.pictures import STRENGTH, file_uri, overlay, quantise, ramp
from tests.pages.making import picture


def opened(uri: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(uri.partition("base64,")[2])))


def test_maps_are_scaled_from_their_lowest_to_their_highest_value() -> None:
    maps = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.25, 0.25], [0.25, 0.25]]], dtype=np.float32)
    levels, spans = quantise(maps)
    assert levels[0].tolist() == [[0, 85], [170, 255]]
    assert levels[1].tolist() == [[0, 0], [0, 0]]  # constant
    np.testing.assert_allclose(spans, [[0.1, 0.4], [0.25, 0.25]])


def test_brighter_always_means_more() -> None:
    luminance = ramp().astype(float) @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(luminance) >= 0).all() and luminance[-1] - luminance[0] > 200


def test_an_overlay_blends_image_and_colour() -> None:
    image = np.full((8, 8, 3), 100, dtype=np.uint8)
    shown = np.asarray(overlay(image, np.full((2, 2), 255, dtype=np.uint8), 16))
    expected = (1 - STRENGTH) * 100 + STRENGTH * ramp()[255].astype(float)
    np.testing.assert_allclose(shown[8, 8], expected, atol=1)


def test_small_files_are_unchanged_and_large_ones_shrink() -> None:
    small, large = picture("small").content, picture("large", 600).content
    kept, shrunk = file_uri(small, 300, 80), file_uri(large, 300, 80)
    assert kept is not None and base64.b64decode(kept.partition("base64,")[2]) == small
    assert shrunk is not None and opened(shrunk).size == (300, 300)
    assert opened(shrunk).format == "JPEG"


def test_a_damaged_file_is_no_picture() -> None:
    whole = picture("whole", 200).content
    assert file_uri(whole[: len(whole) // 2], 300, 80) is None
    assert file_uri(b"", 300, 80) is None
    assert file_uri(b"<svg onload=alert(1)>", 300, 80) is None
