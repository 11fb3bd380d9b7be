"""The random draws of a view, and that the view follows them."""

import math
import pickle

import numpy as np
import pytest
import torch

from lewel.data.views import crop
from lewel.data.views.crop import ViewDraw, ViewRecipe, crop_view, draw_view
from lewel.ops.randomness import generator

DRAWS = 4000


def draws_of(
    recipe: ViewRecipe, height: int = 375, width: int = 500, count: int = DRAWS
) -> list[ViewDraw]:
    stream = generator(height, width)
    return [draw_view(recipe, height, width, stream) for _ in range(count)]


def expect_fraction(fraction: float, probability: float, count: int = DRAWS) -> None:
    """Within five standard deviations, so that a correct draw practically never fails."""
    assert abs(fraction - probability) <= 5 * math.sqrt(probability * (1 - probability) / count)


def test_a_draw_is_a_function_of_the_key() -> None:
    recipe = ViewRecipe(blur=0.5, solarise=0.2)
    seen = set()
    for key in [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0)]:
        first, second = (draw_view(recipe, 375, 500, generator(*key)) for _ in range(2))
        assert first.box == second.box
        assert first.flip == second.flip
        assert np.array_equal(first.photometric, second.photometric)
        seen.add((first.box, first.photometric.tobytes()))
    assert len(seen) == 5


def test_every_draw_uses_the_same_number_of_uniforms() -> None:
    after = set()
    for recipe in (ViewRecipe(), ViewRecipe(jitter_probability=0, blur=0, crop_scale=(5, 6))):
        for height, width in [(375, 500), (1, 900), (32, 32)]:
            stream = generator(3)
            draw_view(recipe, height, width, stream)
            after.add(stream.random())
    assert len(after) == 1


def test_probabilities_do_not_change_other_decisions() -> None:
    one = draw_view(ViewRecipe(), 375, 500, generator(5))
    other = draw_view(ViewRecipe(flip=0, grey=1, blur=0, solarise=1), 375, 500, generator(5))
    assert one.box == other.box
    assert np.array_equal(one.photometric[: crop.GREY], other.photometric[: crop.GREY])


def test_frequencies() -> None:
    recipe = ViewRecipe(flip=0.3, jitter_probability=0.8, grey=0.2, blur=0.6, solarise=0.1)
    draws = draws_of(recipe)
    table = np.stack([draw.photometric for draw in draws])
    assert table.shape == (DRAWS, crop.PHOTOMETRIC_SIZE)
    assert table.dtype == np.float32
    expect_fraction(float(np.mean([draw.flip for draw in draws])), recipe.flip)
    expect_fraction((table[:, crop.ORDER] != crop.SKIP).all(1).mean(), recipe.jitter_probability)
    expect_fraction(
        (table[:, crop.ORDER] == crop.SKIP).all(1).mean(), 1 - recipe.jitter_probability
    )
    expect_fraction(table[:, crop.GREY].mean(), recipe.grey)
    expect_fraction((table[:, crop.BLUR_SIGMA] > 0).mean(), recipe.blur)
    expect_fraction(table[:, crop.SOLARISE].mean(), recipe.solarise)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_certain_and_impossible_decisions(probability: float) -> None:
    p = probability
    recipe = ViewRecipe(flip=p, jitter_probability=p, grey=p, blur=p, solarise=p)
    for draw in draws_of(recipe, count=50):
        assert draw.flip == bool(p)
        assert (draw.photometric[crop.ORDER] != crop.SKIP).all() == bool(p)
        assert draw.photometric[crop.GREY] == draw.photometric[crop.SOLARISE] == p
        assert (draw.photometric[crop.BLUR_SIGMA] > 0) == bool(p)


def test_factors_fill_their_ranges() -> None:
    table = np.stack(
        [draw.photometric for draw in draws_of(ViewRecipe(jitter=(0.4, 1.5, 0.2, 0.1)))]
    )
    bounds = {
        crop.BRIGHTNESS: (0.6, 1.4),
        crop.CONTRAST: (0.0, 2.5),  # a factor is never negative
        crop.SATURATION: (0.8, 1.2),
        crop.HUE: (-0.1, 0.1),
        crop.BLUR_SIGMA: (0.1, 2.0),
    }
    for column, (low, high) in bounds.items():
        values = (table[:, column] - low) / (high - low)
        assert values.min() >= -1e-6
        assert values.max() <= 1 + 1e-6
        assert abs(values.mean() - 0.5) < 5 * math.sqrt(1 / 12 / DRAWS)
        assert abs(values.std() - math.sqrt(1 / 12)) < 0.02


def test_every_order_is_equally_likely() -> None:
    table = np.stack([draw.photometric for draw in draws_of(ViewRecipe(jitter_probability=1))])
    orders, counts = np.unique(table[:, crop.ORDER], axis=0, return_counts=True)
    assert len(orders) == 24
    assert (np.sort(orders, axis=1) == np.arange(4)).all()
    for count in counts:
        expect_fraction(count / DRAWS, 1 / 24)


def test_an_operation_without_range_is_skipped() -> None:
    recipe = ViewRecipe(jitter=(0.4, 0.0, 0.2, 0.0), jitter_probability=1)
    for draw in draws_of(recipe, count=50):
        assert sorted(draw.photometric[crop.ORDER]) == [
            crop.SKIP,
            crop.SKIP,
            crop.BRIGHTNESS,
            crop.SATURATION,
        ]


@pytest.mark.parametrize("scale", [(0.2, 1.0), (0.05, 0.2), (0.9, 1.0)])
@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (96, 96)])
def test_boxes(height: int, width: int, scale: tuple[float, float]) -> None:
    recipe = ViewRecipe(crop_scale=scale)
    fractions, borders = [], []
    for draw in draws_of(recipe, height, width, count=1000):
        top, left, box_height, box_width = draw.box
        assert 0 <= top <= height - box_height
        assert 0 <= left <= width - box_width
        # Sides are rounded to pixels: a half pixel each way.
        assert (box_width - 0.5) / (box_height + 0.5) <= recipe.crop_ratio[1]
        assert (box_width + 0.5) / (box_height - 0.5) >= recipe.crop_ratio[0]
        assert (box_height - 0.5) * (box_width - 0.5) <= scale[1] * height * width
        assert (box_height + 0.5) * (box_width + 0.5) >= scale[0] * height * width
        fractions.append(box_height * box_width / (height * width))
        borders.append((top == 0, top == height - box_height))
    if scale[1] < 0.5:  # where every try fits, the fraction of the area is uniform
        assert abs(np.mean(fractions) - sum(scale) / 2) < 0.01
    assert np.any(borders, axis=0).all()  # both borders are reached


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        (1, 1, (0, 0, 1, 1)),
        (1, 90, (0, 44, 1, 1)),
        (90, 1, (44, 0, 1, 1)),
        (10, 900, (0, 443, 10, 13)),
        (900, 10, (443, 0, 13, 10)),
    ],
)
def test_images_too_thin_for_any_try_give_their_centre(
    height: int, width: int, box: tuple[int, int, int, int]
) -> None:
    draw = draw_view(ViewRecipe(crop_scale=(1.0, 1.0)), height, width, generator(0))
    assert draw.box == box
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
    assert crop_view(image, draw, 16).shape == (3, 16, 16)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 7), (1, 5000), (2, 3), (5000, 1)])
def test_degenerate_images(height: int, width: int) -> None:
    image = torch.full((3, height, width), 200, dtype=torch.uint8)
    for draw in draws_of(ViewRecipe(), height, width, count=20):
        top, left, box_height, box_width = draw.box
        assert 0 <= top < top + box_height <= height
        assert 0 <= left < left + box_width <= width
        assert (crop_view(image, draw, 8) == 200).all()


def test_the_view_is_the_box() -> None:
    # Each pixel's colour is its location, and a box of the view's own size is not resampled.
    rows, columns = torch.meshgrid(torch.arange(90), torch.arange(120), indexing="ij")
    image = torch.stack([rows, columns, rows * 0]).to(torch.uint8)
    nothing = np.zeros(crop.PHOTOMETRIC_SIZE, np.float32)
    view = crop_view(image, ViewDraw((11, 23, 32, 32), False, nothing), 32)
    assert torch.equal(view, image[:, 11:43, 23:55])
    flipped = crop_view(image, ViewDraw((11, 23, 32, 32), True, nothing), 32)
    assert torch.equal(flipped, image[:, 11:43, 23:55].flip(2))


def test_flip_is_the_mirror_image_after_resizing() -> None:
    image = torch.randint(0, 256, (3, 75, 50), dtype=torch.uint8)
    draw = draw_view(ViewRecipe(), 75, 50, generator(2))
    straight, mirrored = (crop_view(image, draw._replace(flip=f), 24) for f in (False, True))
    assert torch.equal(straight.flip(2), mirrored)
    assert not torch.equal(straight, mirrored)


def test_a_view_does_not_alias_the_image() -> None:
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    for layout in (torch.contiguous_format, torch.channels_last):
        source = image[None].contiguous(memory_format=layout)[0]
        draw = ViewDraw((0, 0, 32, 32), False, np.zeros(crop.PHOTOMETRIC_SIZE, np.float32))
        crop_view(source, draw, 32).fill_(9)
        assert (source == 0).all()


def test_recipes_and_draws_can_be_pickled() -> None:
    recipe = ViewRecipe(flip=0.1)
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    draw = draw_view(recipe, 50, 50, generator(0))
    assert pickle.loads(pickle.dumps(draw)).box == draw.box
