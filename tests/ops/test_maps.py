"""Maps sum to 1, uniform maps are average pooling, and both orders of Eq. 2 are equal."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lewel.ops import aggregate as aggregation
from lewel.ops.aggregate import aggregate, aggregate_linear, project_first_is_cheaper
from lewel.ops.maps import softmax_maps, uniform_maps


def test_maps_are_distributions_over_the_locations() -> None:
    maps = softmax_maps(torch.randn(2, 9, 5) * 10)
    assert maps.shape == (2, 5, 9)
    assert (maps > 0).all()
    assert torch.allclose(maps.sum(-1), torch.ones(2, 5))


def test_maps_equal_the_papers_formula_at_one_location() -> None:
    scores = torch.randn(1, 3, 2, dtype=torch.float64)
    unit = scores[0] / scores[0].pow(2).sum(1, keepdim=True).sqrt()
    by_hand = unit[1, 0].exp() / unit[:, 0].exp().sum()
    assert softmax_maps(scores)[0, 0, 1].item() == pytest.approx(by_hand.item(), abs=1e-15)


def test_maps_do_not_depend_on_the_length_of_the_scores() -> None:
    scores = torch.randn(2, 4, 6)
    assert torch.allclose(softmax_maps(scores), softmax_maps(scores * 7), atol=1e-6)


def test_uniform_maps_are_average_pooling() -> None:
    features = torch.randn(2, 9, 8)
    pooled = aggregate(features, uniform_maps(features))
    assert torch.allclose(pooled[:, 0], features.mean(1), atol=1e-6)


def test_one_hot_maps_pick_locations() -> None:
    features = torch.randn(2, 4, 8)
    maps = F.one_hot(torch.tensor([[2, 0], [3, 1]]), 4).float()
    assert torch.equal(aggregate(features, maps)[1, 0], features[1, 3])


def test_grouping_takes_map_k_minus_1_times_h_plus_j() -> None:
    features = torch.randn(1, 3, 4)
    maps = F.one_hot(torch.tensor([[0, 1, 2, 0]]), 3).float()  # d = 4, h = 2
    representations = aggregate(features, maps, groups=2)
    expected = torch.cat([features[0, 2, :2], features[0, 0, 2:]])  # k = 2: maps 3 and 4
    assert torch.equal(representations[0, 1], expected)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    locations=st.integers(1, 9),
    groups=st.sampled_from([1, 2, 4]),
    size=st.integers(1, 3),
    each=st.integers(1, 3),
    bias=st.booleans(),
)
def test_both_orders_agree_in_float64(
    batch: int, locations: int, groups: int, size: int, each: int, bias: bool
) -> None:
    features = torch.randn(batch, locations, size * groups, dtype=torch.float64)
    maps = softmax_maps(torch.randn(batch, locations, each * groups, dtype=torch.float64))
    weight = torch.randn(7, size * groups, dtype=torch.float64)
    offset = torch.randn(7, dtype=torch.float64) if bias else None
    expected = F.linear(aggregate(features, maps, groups), weight, offset)
    for first in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(aggregation, "project_first_is_cheaper", lambda *sizes, f=first: f)
            out = aggregate_linear(features, maps, weight, offset, groups)
        assert torch.allclose(out, expected, atol=1e-10, rtol=0)


def test_the_order_is_the_one_with_fewer_multiplications() -> None:
    assert project_first_is_cheaper(locations=4, channels=512, maps=256, groups=4)
    assert not project_first_is_cheaper(locations=64, channels=2048, maps=256, groups=4)
