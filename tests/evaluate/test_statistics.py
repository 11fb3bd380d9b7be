"""Means over seeds, against SciPy and by hand."""

import numpy as np
import pytest
from scipy import stats

from lewel.evaluate.statistics import T_QUANTILES, Estimate, estimate, paired_difference, verdict


def test_quantiles_are_scipys() -> None:
    expected = stats.t.ppf(0.975, np.arange(1, 31))
    assert pytest.approx(expected, abs=5e-5) == T_QUANTILES


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_the_interval_is_students(seeds: int) -> None:
    values = np.random.default_rng(seeds).normal(70, 2, seeds)
    found = estimate(values.tolist())
    low, high = stats.t.interval(0.95, seeds - 1, values.mean(), stats.sem(values))
    assert found.mean == pytest.approx(values.mean())
    assert found.margin == pytest.approx((high - low) / 2, rel=1e-4)
    assert found.seeds == seeds


def test_one_seed_has_no_interval_and_decides_nothing() -> None:
    assert estimate([3.0]) == Estimate(3.0, None, 1)
    assert verdict(estimate([3.0])) == "undecided"
    assert verdict(None) == "not measured"


def test_equal_differences_of_few_seeds_decide_nothing() -> None:
    assert verdict(estimate([0.1, 0.1])) == "undecided"


def test_the_interval_of_many_seeds_is_not_too_narrow() -> None:
    values = np.random.default_rng(0).normal(70, 2, 40)
    low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
    margin = estimate(values.tolist()).margin
    assert margin is not None and 1 <= 2 * margin / (high - low) < 1.02


def test_differences_are_paired_by_seed() -> None:
    noise = {0: 10.0, 1: 50.0, 2: 90.0}  # large between seeds, the same for both
    better = {seed: value + 1 + 0.01 * seed for seed, value in noise.items()}
    difference = paired_difference(better, {**noise, 7: 0.0})
    assert difference is not None
    assert difference.mean == pytest.approx(1.01) and difference.seeds == 3
    assert verdict(difference) == "holds"
    assert verdict(paired_difference(noise, better)) == "contradicted"
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_an_interval_around_zero_is_undecided() -> None:
    assert verdict(estimate([1.0, -1.2, 0.4])) == "undecided"
