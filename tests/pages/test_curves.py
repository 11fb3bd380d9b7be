"""Curves: columns against a slow loop, ticks, and coordinates."""

import math

import numpy as np
import pytest

from lewel.pages.curves import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, charts, envelope, ticks
from lewel.train.summary import Summary


def test_columns_hold_lowest_mean_and_highest_of_their_points() -> None:
    draw = np.random.default_rng(0)
    x, y = np.sort(draw.random(1000)) * 8, draw.normal(size=1000)
    rows = envelope(np.stack([x, y, y, y], 1), 0.0, 8.0, bins=50)
    expected = []
    for column in range(50):
        inside = [i for i in range(1000) if min(int(x[i] / 0.16), 49) == column]
        if inside:
            values = y[inside]
            expected.append((x[inside].mean(), values.min(), values.mean(), values.max()))
    np.testing.assert_allclose(rows, np.array(expected))


def test_a_hundred_thousand_points_become_a_few_hundred() -> None:
    lines = [
        {"step": i, "epoch": i / 1000, "loss": (i * 7919 % 1000) / 1000} for i in range(100_000)
    ]
    (drawn,) = charts(["run"], [Summary.of(lines)])
    (curve,) = drawn.curves
    assert 200 < curve.line.count("L") < 300
    assert len(curve.band) < 10_000


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 8.0, [0, 2, 4, 6, 8]),
        (0.0, 1.0, [0, 0.25, 0.5, 0.75, 1]),
        (0.13, 0.29, [0.15, 0.2, 0.25]),
        (-3e-6, 9e-6, [0, 5e-6]),
        (5.0, 5.0, [5]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    found = ticks(low, high)
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    if expected[-1] > 1e-5:
        assert found == pytest.approx(expected)


def test_a_line_runs_from_its_first_to_its_last_point() -> None:
    lines = [{"step": step, "epoch": step / 2, "loss": 4.0 - step} for step in range(5)]
    (chart,) = charts(["run"], [Summary.of(lines)])
    (curve,) = chart.curves
    assert curve.dots[0][0] == LEFT and curve.dots[-1] == (WIDTH - RIGHT, HEIGHT - BOTTOM)
    heights = [y for _, y in curve.dots]
    assert heights == sorted(heights)  # y points down: a loss that falls
    assert np.ptp(np.diff(heights)) <= 0.2 + 1e-9  # a straight line, to the rounding
    assert curve.last == "0" and "4 at epoch 0" in curve.summary
    assert not curve.band


def test_runs_share_axes_and_keep_their_colour_where_one_lacks_the_number() -> None:
    one = [{"step": i, "epoch": float(i), "loss": 1.0 + i} for i in range(3)]
    two = [{"step": i, "epoch": float(i), "loss": 10.0, "accuracy": 0.5} for i in range(5)]
    loss, other = charts(["one", "two"], [Summary.of(one), Summary.of(two)])
    assert [curve.run for curve in loss.curves] == [0, 1]
    assert loss.curves[0].dots[-1][0] == pytest.approx(LEFT + (WIDTH - LEFT - RIGHT) / 2)
    assert other.title == "Accuracy" and [curve.run for curve in other.curves] == [1]


def test_numbers_that_are_not_finite_are_counted_and_left_out() -> None:
    lines = [{"step": i, "epoch": float(i), "loss": v} for i, v in enumerate([2, math.nan, 1])]
    lines.append({"step": 3, "epoch": 3.0, "loss": math.inf})
    (chart,) = charts(["run"], [Summary.of(lines)])
    assert chart.curves[0].missing == 2
    assert "nan" not in chart.curves[0].line and "inf" not in chart.curves[0].line
    assert charts(["run"], [Summary.of([{"step": 0, "epoch": 0.0, "loss": math.nan}])]) == []
    assert charts(["run"], [Summary()]) == []
