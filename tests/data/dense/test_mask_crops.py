"""Crops of images with masks: functions of their key, aligned with masks, of several classes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lewel.data.dense import mask_crops
from lewel.data.dense.mask_crops import (
    MaskCrops,
    cut,
    draw_photometric,
    draw_place,
    resize_both,
    scaled,
)
from lewel.data.dense.masks import SceneMasks
from lewel.data.views.augment import augment_colours
from lewel.data.views.crop import BRIGHTNESS, CONTRAST, HUE, ORDER, SATURATION, SKIP


def test_a_crop_depends_only_on_its_key() -> None:
    crops = MaskCrops(SceneMasks("train", 48, 10), 32, None, seed=3)
    whole = crops.__getitems__([(0, 1), (0, 2), (1, 1)])
    again = crops.__getitems__([(0, 2)])
    assert torch.equal(whole.pixels[1], again.pixels[0])
    assert torch.equal(whole.masks[1], again.masks[0])
    assert torch.equal(whole.draws[1], again.draws[0])
    assert not torch.equal(whole.pixels[0], whole.pixels[2])
    assert whole.pixels.shape == (3, 3, 32, 32) and whole.masks.shape == (3, 32, 32)
    assert not whole.corrupt


class Striped:
    """An image whose red level is 10 times the class of the pixel."""

    name, classes, labels = "striped", tuple("abcdefgh"), None

    def __len__(self) -> int:
        return 50

    def describe(self, index: int) -> str:
        return str(index)

    def pair(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        mask = (torch.arange(48) // 6).repeat(36, 1).to(torch.uint8)
        return torch.stack([10 * mask, mask, 0 * mask]), mask


def test_image_and_mask_are_cropped_alike() -> None:
    crops = MaskCrops(Striped(), 32, None, seed=0)  # type: ignore[arg-type]
    batch = crops.__getitems__([(0, index) for index in range(50)])
    known = batch.masks != 255
    wrong = ((batch.pixels[:, 0].int() - 10 * batch.masks.int()).abs() > 8)[known]
    assert wrong.float().mean() < 0.05  # only where the resizing blends two stripes
    flipped = (batch.masks[:, 0, 0] > batch.masks[:, 0, 16]).float().mean()
    assert 0.3 < flipped < 0.7
    assert (~known).any() and known.any()  # small scales are padded
    padding = batch.pixels.permute(0, 2, 3, 1)[~known]
    assert (padding == torch.tensor(mask_crops.FILL)).all()


def test_scales_are_relative_to_the_image_or_to_its_shorter_side() -> None:
    image, mask = torch.zeros(3, 30, 40, dtype=torch.uint8), torch.zeros(30, 40, dtype=torch.uint8)
    assert scaled(mask, None, 0.5) == (15, 20)
    assert scaled(mask, 60, 1.0) == (60, 80)
    assert scaled(mask.T, 60, 2.0) == (160, 120)
    same = resize_both(image, mask, None, 1.0)
    assert same[0] is image and same[1] is mask
    wide, labels = resize_both(image, mask, 60, 1.5)
    assert wide.shape == (3, 90, 120) and labels.shape == (90, 120)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), height=st.integers(8, 40), width=st.integers(8, 40))
def test_no_class_fills_more_than_three_quarters_of_a_crop(
    seed: int, height: int, width: int
) -> None:
    draw = np.random.default_rng(seed)
    mask = torch.from_numpy((draw.random((height, width)).cumsum(1) * 0.2).astype(np.uint8))
    mask[draw.random((height, width)) < 0.1] = 255
    uniforms = draw.random((10, 2))
    top, left = draw_place(mask, 16, uniforms)
    assert 0 <= top <= max(0, height - 16) and 0 <= left <= max(0, width - 16)
    places = [
        (int(down * (max(0, height - 16) + 1)), int(across * (max(0, width - 16) + 1)))
        for down, across in uniforms
    ]
    good = []
    for down, across in places:
        known = mask[down : down + 16, across : across + 16].numpy()
        _, counts = np.unique(known[known != 255], return_counts=True)
        good.append(len(counts) > 1 and counts.max() <= 0.75 * counts.sum())
    assert (top, left) == (places[good.index(True)] if any(good) else places[-1])


def test_pixels_outside_the_image_are_ignored() -> None:
    image = torch.arange(3 * 4 * 5, dtype=torch.uint8).view(3, 4, 5)
    mask = torch.ones(4, 5, dtype=torch.uint8)
    crop, labels = cut(image, mask, 1, 0, 8)
    assert torch.equal(crop[:, :3, :5], image[:, 1:])
    assert (labels == 1).sum() == 15 and (labels == 255).sum() == 64 - 15


def test_photometric_draws_have_mmsegmentations_ranges_and_orders() -> None:
    draw = np.random.default_rng(0)
    draws = torch.stack([draw_photometric(draw.random(9).tolist()) for _ in range(2000)])
    for column, centre, reach in (
        (BRIGHTNESS, 1, 32 / 255),
        (CONTRAST, 1, 0.5),
        (SATURATION, 1, 0.5),
        (HUE, 0, 0.1),
    ):
        assert draws[:, column].min().item() == pytest.approx(centre - reach, abs=0.01)
        assert draws[:, column].max().item() == pytest.approx(centre + reach, abs=0.01)
        assert (draws[:, ORDER] == column).any(1).float().mean().item() == pytest.approx(
            0.5, abs=0.05
        )
    orders = {tuple(o for o in row if o != SKIP) for row in draws[:, ORDER].int().tolist()}
    longest = {order for order in orders if len(order) == 4}
    assert longest == {
        (BRIGHTNESS, CONTRAST, SATURATION, HUE),
        (BRIGHTNESS, SATURATION, HUE, CONTRAST),
    }
    pixels = torch.randint(256, (1, 3, 8, 8), dtype=torch.uint8)
    none = draw_photometric([0.9] * 9)[None]
    plain = augment_colours(pixels, none, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    torch.testing.assert_close(plain, (pixels / 255 - 0.5) / 0.25)
