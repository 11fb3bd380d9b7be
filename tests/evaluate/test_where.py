"""Metrics of maps: against NumPy and SciPy, by hand, and against theory on `scenes`."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats

from lewel.data.dense.masks import SceneMasks
from lewel.evaluate import where
from lewel.evaluate.map_selection import agreement, most_consistent, most_different, most_peaked
from lewel.evaluate.maps import random_maps
from lewel.tasks.where import cells

RANDOM = np.random.default_rng(0)


def maps_like(batch: int, many: int, locations: int) -> torch.Tensor:
    return torch.from_numpy(RANDOM.dirichlet(np.ones(locations), (batch, many))).float()


def iou_in_order(order: list[int], inside: np.ndarray, room: np.ndarray) -> float:
    """Cells filled one by one until the object's area is reached."""
    left = area = float(inside.sum())
    shared = 0.0
    for cell in order:
        part = min(left, room[cell])
        shared += inside[cell] * part / room[cell] if room[cell] else 0.0
        left -= part
    return shared / (2 * area - shared)


def test_matching_is_the_fraction_of_locations_matched_at_their_place() -> None:
    box = torch.tensor([[0.1, 0.2, 0.5, 0.5]] * 2)
    upright = torch.zeros(2, dtype=torch.bool)
    features, crops, flips = torch.randn(2, 16, 8), [box, box], [upright, upright]
    other = features.clone()
    other[0, :8] *= -1  # the upper half of the first image is least like itself
    assert where.matching([features, other], crops, flips, 4).tolist() == [0.5, 1]
    assert where.matching(None, crops, flips, 4).tolist() == pytest.approx([1 / 16, 1 / 16])
    away = box + torch.tensor([0.0, 0.6, 0.0, 0.0])
    assert where.matching([features, features], [box, away], flips, 4).isnan().all()


def test_correlation_is_numpys_over_the_shared_cells() -> None:
    one, two = maps_like(3, 4, 40), maps_like(3, 4, 40)
    shared = torch.from_numpy(RANDOM.random((3, 40)) < 0.6)
    found = where.correlation(one, two, shared)
    for b in range(3):
        for k in range(4):
            pair = [m[b, k, shared[b]].double().numpy() for m in (one, two)]
            assert found[b, k].item() == pytest.approx(np.corrcoef(*pair)[0, 1], abs=1e-9)


def test_little_overlap_and_constant_maps_have_no_correlation() -> None:
    one, flat = maps_like(2, 3, 30), torch.full((2, 3, 30), 1 / 30)
    shared = torch.zeros(2, 30, dtype=torch.bool)
    shared[0, :16], shared[1, :15] = True, True
    assert where.correlation(one, one, shared)[0].tolist() == pytest.approx([1.0] * 3)
    assert where.correlation(one, one, shared)[1].isnan().all()
    assert where.correlation(one, flat, shared).isnan().all()


def test_pointing_is_the_objects_fraction_of_the_highest_cell() -> None:
    maps = torch.tensor([[[0.1, 0.6, 0.2, 0.1], [0.4, 0.1, 0.1, 0.4], [0.1, 0.2, 0.1, 0.6]]])
    inside, known = torch.tensor([[0.5, 0.25, 0.0, 0.0]]), torch.tensor([[1.0, 0.5, 1.0, 0.0]])
    # The last cell is all ignored: the third map points at the second cell, the second one at the
    # first alone.
    assert where.pointing(maps, inside, known)[0].tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert where.pointing(maps, inside, torch.ones(1, 4))[0].tolist() == pytest.approx(
        [0.25, 0.25, 0.0]
    )


def test_iou_by_hand_and_by_filling_cells() -> None:
    maps = torch.tensor([[[0.4, 0.3, 0.2, 0.1]]])
    inside = torch.tensor([[1.0, 0.0, 0.5, 0.0]])
    # Area 1.5: the first cell and half of the second, which share 1 with the object.
    assert where.cut_iou(maps, inside, torch.ones(1, 4)).item() == pytest.approx(1 / (3 - 1))
    maps = maps_like(5, 7, 9)
    room = RANDOM.random((5, 9))
    room[0, 3] = 0
    inside = torch.from_numpy(room * RANDOM.random((5, 9)))
    found = where.cut_iou(maps, inside, torch.from_numpy(room))
    for b in range(5):
        for k in range(7):
            order = maps[b, k].argsort(descending=True).tolist()
            expected = iou_in_order(order, inside[b].numpy(), room[b])
            assert found[b, k].item() == pytest.approx(expected, abs=1e-9)


def test_ties_count_by_chance() -> None:
    """Against points of tied cells drawn at random, many times."""
    maps = torch.tensor([[[0.3, 0.3, 0.3, 0.1]]])
    inside = np.array([0.9, 0.2, 0.1, 0.0])
    side = 400
    pixels = np.zeros((4, side), bool)
    for cell, fraction in enumerate(inside):
        pixels[cell, : round(fraction * side)] = True
    object_, area = pixels.ravel(), pixels.sum()
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(400):
        shared = object_[rng.permutation(3 * side)[:area]].sum()
        drawn.append(shared / (2 * area - shared))
    found = where.cut_iou(maps, torch.from_numpy(inside)[None], torch.ones(1, 4)).item()
    assert found == pytest.approx(np.mean(drawn), abs=0.005)


# A whole view shows 32 of 37 pixels (8/7) per side, from the third on: edge pixels in part. From 84
# to 64 pixels filters have few weights, for which images are resized by another code path.
@pytest.mark.parametrize(("size", "view", "whole", "first"), [(48, 32, 37, 2), (84, 56, 64, 4)])
def test_uniform_maps_score_the_objects_area_on_scenes(
    size: int, view: int, whole: int, first: int
) -> None:
    scenes = SceneMasks("val", size=size, length=40)
    inside, known = cells(scenes, np.arange(40), view, 4)
    uniform = torch.full((40, 3, 16), 1 / 16)
    low, high = first / whole * size, (first + view) / whole * size
    edges = np.arange(size)
    part = np.clip(np.minimum(edges + 1, high) - np.maximum(edges, low), 0, 1) / (high - low)
    area = np.array([part @ (scenes.pair(i)[1].numpy() > 0) @ part for i in range(40)])
    fraction = inside.mean(1).numpy()
    assert np.abs(fraction - area).max() < 0.004
    assert torch.allclose(known, torch.ones_like(known), atol=1e-5)
    for k in range(3):
        assert np.allclose(
            where.pointing(uniform, inside, known)[:, k].numpy(), fraction, atol=1e-6
        )
        expected = fraction / (2 - fraction)
        assert np.allclose(where.cut_iou(uniform, inside, known)[:, k].numpy(), expected, atol=1e-6)
    assert where.normalised_entropy(uniform).numpy() == pytest.approx(1.0)
    assert where.overlap(uniform).numpy() == pytest.approx(1.0)
    assert where.mean_correlation(uniform).isnan().all()


def test_random_maps_score_at_chance_on_scenes() -> None:
    scenes = SceneMasks("val", size=48, length=12)
    inside, known = cells(scenes, np.arange(12), 32, 4)
    maps = random_maps(12, 3000, 4, key=5).flatten(2)
    assert maps.sum(2).numpy() == pytest.approx(1.0, abs=1e-5)
    points, ious = where.pointing(maps, inside, known), where.cut_iou(maps, inside, known)
    rng = np.random.default_rng(2)
    for b in range(12):
        error = points[b].std().item() / 3000**0.5
        assert abs(points[b].mean() - inside[b].mean()) < 4 * error + 1e-9
        orders = [rng.permutation(16).tolist() for _ in range(1500)]
        chance = [iou_in_order(o, inside[b].numpy(), np.ones(16)) for o in orders]
        error = np.hypot(np.std(chance) / 1500**0.5, ious[b].std().item() / 3000**0.5)
        assert abs(ious[b].mean() - np.mean(chance)) < 4 * error


def test_random_maps_on_six_cells_equal_all_orders() -> None:
    inside = np.array([1.0, 0.7, 0.0, 0.2, 0.0, 0.0])
    exact = np.mean([iou_in_order(list(o), inside, np.ones(6)) for o in permutations(range(6))])
    maps = torch.from_numpy(RANDOM.random((1, 40_000, 6)))
    found = where.cut_iou(maps, torch.from_numpy(inside)[None], torch.ones(1, 6))
    assert found.mean().item() == pytest.approx(exact, abs=4 * found.std().item() / 200)


def test_random_maps_of_two_views_do_not_agree() -> None:
    rng = np.random.default_rng(3)
    many = 200
    boxes = [
        torch.from_numpy(np.c_[rng.integers(0, 20, (many, 2)), rng.integers(20, 44, (many, 2))])
        for _ in range(2)
    ]
    flips = [torch.from_numpy(rng.random(many) < 0.5) for _ in range(2)]
    sizes = torch.full((many, 2), 64)
    maps = [random_maps(many, 8, 4, key) for key in (1, 2)]
    for shift in (0, 1):
        found = agreement(maps, boxes, flips, sizes, shift)
        good = found[~found.isnan()]
        images = found.nanmean(1)
        images = images[~images.isnan()]
        assert len(good) > 1000
        assert abs(images.mean()) < 4 * images.std() / len(images) ** 0.5
    # One map of the image, cropped to both views, agrees with itself.
    ramp = torch.linspace(0, 1, 64)[None, None, :, None].expand(1, 1, 64, 64)
    views = [
        torch.nn.functional.interpolate(
            ramp[..., int(y) : int(y + h), int(x) : int(x + w)], (8, 8), mode="area"
        )
        for y, x, h, w in (boxes[0][0], boxes[1][0])
    ]
    own = [[part[:1] for part in parts] for parts in (boxes, flips)]
    assert agreement(views, *own, sizes[:1]).item() > 0.98


def test_diversity_is_scipys_and_numpys() -> None:
    maps = maps_like(2, 5, 12)
    pairs = [(a, b) for a in range(5) for b in range(a)]
    for b in range(2):
        rows = maps[b].double().numpy()
        expected = stats.entropy(rows, axis=1) / np.log(12)
        assert where.normalised_entropy(maps)[b].numpy() == pytest.approx(expected, abs=1e-6)
        shared = np.mean([np.minimum(rows[i], rows[j]).sum() for i, j in pairs])
        assert where.overlap(maps)[b].item() == pytest.approx(shared, abs=1e-9)
        mean = np.mean([np.corrcoef(rows)[i, j] for i, j in pairs])
        assert where.mean_correlation(maps)[b].item() == pytest.approx(mean, abs=1e-9)
    one = torch.zeros(1, 1, 12)
    one[..., 3] = 1
    assert where.normalised_entropy(one).item() == 0.0


def test_the_interval_is_that_of_a_mean() -> None:
    values = np.append(np.random.default_rng(4).normal(2.0, 3.0, 900), np.nan)
    found = where.summary(values)
    error = 1.96 * np.nanstd(values) / 30
    assert found["images"] == 900 and found["value"] == pytest.approx(np.nanmean(values))
    low, high = found["interval"]
    assert high - low == pytest.approx(2 * error, rel=0.12)
    assert where.summary(np.array([np.nan])) == {"value": None, "interval": None, "images": 0}


def test_rules_select_the_right_maps() -> None:
    peak = torch.full((1, 4, 9), 0.1 / 8)
    for k, place in enumerate((0, 0, 5, 8)):
        peak[0, k, place] = 0.9
    peak[0, 1] = peak[0, 0] * 0.5 + 0.5 / 9  # as the first one, flatter
    peak[0, 3] = peak[0, 3] * 0.8 + 0.2 / 9
    assert most_peaked(peak) == [0, 2, 3, 1]
    assert most_different(peak, 3) == [0, 2, 3]
    assert most_different(peak, 9) == [0, 2, 3, 1]
    scores = torch.tensor([[0.1, 0.9, torch.nan], [0.3, 0.7, torch.nan]])
    assert most_consistent(scores) == [1, 0, 2]
    assert most_consistent(scores[:, 2:]) is None
