"""Warping from view to image coordinates inverts crops and flips."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lewel.data.views.crop import PHOTOMETRIC_SIZE, ViewDraw, crop_view
from lewel.ops.geometry import warp_to_image

CELLS = 48


@st.composite
def dots(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int, int, int], tuple[int, int]]:
    """The size of an image, a box in it and a pixel in the box."""
    height, width = draw(st.integers(20, 70)), draw(st.integers(20, 70))
    box_height, box_width = draw(st.integers(10, height)), draw(st.integers(10, width))
    top, left = draw(st.integers(0, height - box_height)), draw(st.integers(0, width - box_width))
    y = draw(st.integers(top, top + box_height - 1))
    x = draw(st.integers(left, left + box_width - 1))
    return (height, width), (top, left, box_height, box_width), (y, x)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(dots(), st.booleans(), st.integers(16, 40))
def test_a_dot_is_warped_back_through_crop_and_flip(
    where: tuple[tuple[int, int], tuple[int, int, int, int], tuple[int, int]], flip: bool, size: int
) -> None:
    (height, width), box, (y, x) = where
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[:, y, x] = 255
    draw = ViewDraw(box, flip, np.zeros(PHOTOMETRIC_SIZE, np.float32))
    view = crop_view(image, draw, size)  # the crop of the training path
    warped, shown = warp_to_image(
        view[None, :1].float(),
        torch.tensor([box]),
        torch.tensor([flip]),
        torch.tensor([[height, width]]),
        CELLS,
    )
    top, left, box_height, box_width = box
    centres = (np.arange(CELLS) + 0.5) / CELLS
    rows = (centres * height >= top) & (centres * height <= top + box_height)
    columns = (centres * width >= left) & (centres * width <= left + box_width)
    assert np.array_equal(shown[0].numpy(), rows[:, None] & columns)

    lit = warped[0, 0].masked_fill(~shown[0], -1)
    found = (lit == lit.max()).nonzero().double().mean(0) + 0.5  # ties: their middle
    # As exact as a pixel of the view, one of the image and a cell allow.
    assert abs(float(found[0]) / CELLS - (y + 0.5) / height) <= (
        (box_height / size + 1) / height + 1 / CELLS
    )
    assert abs(float(found[1]) / CELLS - (x + 0.5) / width) <= (
        (box_width / size + 1) / width + 1 / CELLS
    )


def test_a_small_map_by_hand() -> None:
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    left_half = torch.tensor([[0, 0, 8, 4]])
    sizes = torch.tensor([[8, 8]])
    # Four cells a side: the left two columns lie at a quarter and three quarters of the view,
    # which are the centres of its locations; rows lie at 1/8, 3/8, 5/8, 7/8.
    for flip, columns in ((False, [1.0, 2.0]), (True, [2.0, 1.0])):
        warped, shown = warp_to_image(maps, left_half, torch.tensor([flip]), sizes, 4)
        expected = np.array([0.0, 0.5, 1.5, 2.0])[:, None] + np.array(columns)
        np.testing.assert_allclose(warped[0, 0, :, :2].numpy(), expected, atol=1e-6)
        assert shown[0].tolist() == [[True, True, False, False]] * 4
