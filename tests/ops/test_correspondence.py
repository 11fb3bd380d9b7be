"""Locations of two views that belong together, against loops over locations."""

import math

import pytest
import torch

from lewel.ops.correspondence import at_locations, most_similar, pairs_by_place

SQUARE = [[10, 20, 60, 60], [0, 0, 40, 40]]


def slow_pairs(
    boxes: list[list[int]], flips: list[bool], side: int, threshold: float
) -> list[list[bool]]:
    """The pairs of one image: its two crops, and whether each is flipped."""

    def centre(location: int, view: int) -> tuple[float, float]:
        top, left, height, width = boxes[view]
        row, column = divmod(location, side)
        column = side - 1 - column if flips[view] else column
        return left + (column + 0.5) * width / side, top + (row + 0.5) * height / side

    diagonal = max(math.hypot(height / side, width / side) for _, _, height, width in boxes)
    return [
        [math.dist(centre(i, 0), centre(j, 1)) < threshold * diagonal for j in range(side**2)]
        for i in range(side**2)
    ]


@pytest.mark.parametrize("threshold", [0.7, 1.3])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
def test_pairs_by_place_equal_the_distances_of_all_centres(
    flips: tuple[bool, bool], threshold: float
) -> None:
    one = [[5, 3, 31, 47], [0, 0, 64, 64], [20, 20, 21, 13]]
    two = [[1, 10, 50, 33], [16, 16, 32, 32], [18, 22, 25, 12]]
    boxes = torch.tensor(one), torch.tensor(two)
    turned = torch.tensor([flips[0]] * 3), torch.tensor([flips[1]] * 3)
    pairs = pairs_by_place(boxes, turned, 4, threshold)
    for image in range(3):
        slow = slow_pairs([one[image], two[image]], list(flips), 4, threshold)
        assert pairs[image].tolist() == slow
    assert pairs.any()


def test_identical_crops_pair_each_location_with_itself_and_disjoint_ones_none() -> None:
    boxes, upright = torch.tensor(SQUARE), torch.zeros(2, dtype=torch.bool)
    assert torch.equal(
        pairs_by_place((boxes, boxes), (upright, upright), 5, 0.7),
        torch.eye(5**2).bool().repeat(2, 1, 1),
    )
    away = boxes + torch.tensor([0, 200, 0, 0])
    assert not pairs_by_place((boxes, away), (upright, upright), 5, 0.7).any()


def test_a_flipped_crop_gives_flipped_pairs() -> None:
    boxes, upright = torch.tensor(SQUARE), torch.zeros(2, dtype=torch.bool)
    others = torch.tensor([[15, 10, 50, 70], [10, 10, 30, 40]])
    straight = pairs_by_place((boxes, others), (upright, upright), 4, 0.7)
    turned = pairs_by_place((boxes, others), (upright, ~upright), 4, 0.7)
    assert straight.any()
    assert torch.equal(turned.unflatten(2, (4, 4)).flip(3).flatten(2), straight)


def test_a_view_matches_itself_by_the_identity_and_a_permutation_by_its_inverse() -> None:
    features = torch.randn(3, 9, 16)
    assert torch.equal(most_similar(features, features), torch.arange(9).expand(3, -1))
    order = torch.randperm(9)
    found = most_similar(features, 5 * features[:, order])  # lengths do not count
    assert torch.equal(order[found], torch.arange(9).expand(3, -1))
    assert torch.equal(at_locations(features[:, order], found), features)


def test_values_at_locations_are_an_aggregation_by_one_hot_maps() -> None:
    values, chosen = torch.randn(2, 6, 3), torch.randint(6, (2, 4))
    maps = torch.nn.functional.one_hot(chosen, 6).float()
    assert torch.equal(at_locations(values, chosen), maps @ values)
