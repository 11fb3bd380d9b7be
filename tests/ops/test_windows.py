"""ReSim's windows and their features, against sums written out."""

import math

import pytest
import torch
from torch import Tensor

from lewel.ops.windows import averaged_windows, in_other_view, region_features, slide

BOXES = torch.tensor([[10, 20, 60, 60], [0, 0, 40, 50]])
UPRIGHT = torch.zeros(2, dtype=torch.bool)


def sampled(plane: Tensor, x: float, y: float) -> Tensor:
    """The bilinear value of a plane (C, h, w) at a point in units of locations."""
    height, width = plane.shape[-2:]
    x, y = min(max(x - 0.5, 0), width - 1), min(max(y - 0.5, 0), height - 1)
    left, top = min(int(x), max(width - 2, 0)), min(int(y), max(height - 2, 0))
    right, bottom = min(left + 1, width - 1), min(top + 1, height - 1)
    across, down = x - left, y - top
    upper = plane[:, top, left] * (1 - across) + plane[:, top, right] * across
    lower = plane[:, bottom, left] * (1 - across) + plane[:, bottom, right] * across
    return upper * (1 - down) + lower * down


def slow_region(plane: Tensor, region: list[float]) -> Tensor:
    """RoIAlign of one region (left, top, right, bottom of 0 to 1) of a plane (C, h, w)."""
    height, width = plane.shape[-2:]
    left, top, right, bottom = region
    total = torch.zeros_like(plane[:, 0, 0])
    for i in (0.25, 0.75):
        for j in (0.25, 0.75):
            x, y = left + (right - left) * i, top + (bottom - top) * j
            total = total + sampled(plane, x * width, y * height) / 4
    return total


def test_resims_windows_at_224_px_are_6_by_6() -> None:
    windows = slide(48 / 224, 32 / 224)
    assert windows.shape == (36, 4)
    assert torch.allclose(windows[7] * 224, torch.tensor([32, 32, 80, 80]).double())
    assert windows.max() <= 1
    assert slide(1.0, 0.3).tolist() == [[0, 0, 1, 1]]


def test_features_of_regions_equal_their_sums_with_gradient() -> None:
    planes = torch.randn(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    regions = torch.rand(2, 7, 4, dtype=torch.float64).sort(-1).values[..., [0, 1, 2, 3]]
    fast = region_features(planes, regions)
    slow = torch.stack(
        [
            torch.stack([slow_region(plane, one) for one in some.tolist()])
            for plane, some in zip(planes, regions, strict=True)
        ]
    )
    assert torch.allclose(fast, slow, atol=1e-12)
    weight = torch.randn_like(slow)
    ours, theirs = (torch.autograd.grad((out * weight).sum(), planes)[0] for out in (fast, slow))
    assert torch.allclose(ours, theirs, atol=1e-12)


def test_all_windows_of_identical_crops_are_inside_and_have_equal_features() -> None:
    windows = slide(0.3, 0.2)
    regions, inside = in_other_view(windows, (BOXES, BOXES), (UPRIGHT, UPRIGHT))
    assert inside.all()
    assert torch.allclose(regions, windows.expand_as(regions), atol=1e-12)
    planes = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    own = region_features(planes, windows.expand_as(regions))
    assert torch.allclose(region_features(planes, regions), own, atol=1e-12)


def test_a_flip_of_both_the_view_and_its_features_changes_nothing() -> None:
    windows, planes = slide(0.3, 0.2), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    others = torch.tensor([[12, 18, 50, 60], [0, 5, 38, 44]])
    straight, inside = in_other_view(windows, (BOXES, others), (UPRIGHT, UPRIGHT))
    turned, same = in_other_view(windows, (BOXES, others), (UPRIGHT, ~UPRIGHT))
    assert torch.equal(inside, same)
    assert 0 < inside.sum() < inside.numel()
    there = region_features(planes, straight)[inside]
    assert torch.allclose(region_features(planes.flip(3), turned)[inside], there, atol=1e-12)


@pytest.mark.parametrize("shift", [0, 15, 60, 100])
def test_a_window_is_valid_where_it_lies_in_the_other_crop(shift: int) -> None:
    windows = slide(0.25, 0.25)
    one, two = [0, 0, 80, 80], [shift, 0, 80, 80]
    boxes = torch.tensor([one]), torch.tensor([two])
    regions, inside = in_other_view(windows, boxes, (UPRIGHT[:1], UPRIGHT[:1]))
    for window, region, valid in zip(windows, regions[0], inside[0], strict=True):
        top, bottom = 80 * window[1], 80 * window[3]
        assert valid == (top >= shift and bottom <= shift + 80)
        assert math.isclose(80 * region[1] + shift, top, abs_tol=1e-9)


def test_averaged_windows_are_means_over_3_by_3_locations() -> None:
    planes = torch.randn(2, 3, 14, 14, dtype=torch.float64)
    found = averaged_windows(planes)
    assert found.shape == (2, 144, 3)
    assert torch.allclose(found[1, 2 * 12 + 4], planes[1, :, 2:5, 4:7].mean((1, 2)))
    small = averaged_windows(planes[..., :2, :2])
    assert torch.allclose(small[:, 0], planes[..., :2, :2].mean((2, 3)))
