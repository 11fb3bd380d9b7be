"""Maps as pictures and as a page."""

import numpy as np

from lewel.pages.gallery import Gallery, GalleryImage, GalleryView
from lewel.pages.overlays import COVER, HEAT, grid, heat, overlay, raw_range, scaled


def gallery(name: str = "cat.jpg") -> Gallery:
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.ones(16), 3).reshape(3, 4, 4).astype(np.float32)
    views = tuple(
        GalleryView(caption, rng.integers(0, 255, (32, 32, 3), dtype=np.uint8), maps)
        for caption in ("input", "view 1", "view 2")
    )
    seen = (GalleryImage(name, views), GalleryImage("a/very/long/" * 30 + "dog.jpg", views))
    return Gallery("most peaked", (4, 0, 7), "A note <of> some kind.", seen)


def test_heat_goes_from_the_lowest_to_the_highest_value() -> None:
    values = np.full((4, 4), 0.060, np.float32)
    values[2, 1], values[0, 3] = 0.061, 0.059
    picture = overlay(np.full((8, 8, 3), 100, np.uint8), values, 4).astype(float)
    assert np.abs(picture[2, 1] - (COVER * HEAT[-1] + (1 - COVER) * 100)).max() <= 1
    assert np.abs(picture[0, 3] - (COVER * HEAT[0] + (1 - COVER) * 100)).max() <= 1
    lightness = heat(np.linspace(0, 1, 50)) @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(lightness) > 0).all()
    assert raw_range(values) == "59.0 to 61.0"
    assert raw_range(values / 20) == "2.95 to 3.05"
    flat = np.full((4, 4), 1 / 16, np.float32)
    assert (scaled(flat) == 0).all() and raw_range(flat).startswith("flat 62.5")


def test_the_grid_has_a_row_for_each_view_and_keeps_its_width() -> None:
    page = grid(gallery())
    few = grid(Gallery("x", (4, 0, 7), None, gallery().images[:1]))
    assert page.width == few.width and page.height > 2 * (few.height - 60)
