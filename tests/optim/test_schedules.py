"""Schedules are pure functions of progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lewel.optim.schedules import cosine, detection_rate, learning_rate, poly, teacher_momentum


def test_cosine_goes_from_start_to_end() -> None:
    assert cosine(2.0, 1.0, 0.0) == 2.0
    assert cosine(2.0, 1.0, 0.5) == pytest.approx(1.5)
    assert cosine(2.0, 1.0, 1.0) == pytest.approx(1.0)


def test_the_learning_rate_warms_up_linearly_and_falls_to_zero() -> None:
    def rate(progress: float) -> float:
        return learning_rate(0.4, progress, warmup=0.1, schedule="cosine")

    assert rate(0.0) == 0.0
    assert rate(0.05) == pytest.approx(0.2)
    assert rate(0.1) == pytest.approx(0.4)
    assert rate(0.55) == pytest.approx(0.2)
    assert rate(1.0) == pytest.approx(0.0)


def test_the_warm_up_may_begin_and_the_cosine_end_above_zero() -> None:
    def rate(progress: float, schedule: str = "cosine") -> float:
        return learning_rate(4.8, progress, 0.1, schedule, start=1 / 16, end=0.001)

    assert [rate(0.0), rate(0.05), rate(0.1)] == pytest.approx([0.3, 2.55, 4.8])
    assert rate(1.0) == pytest.approx(0.0048)
    assert rate(0.7, "steps") == pytest.approx(0.48) and rate(0.8, "steps") == pytest.approx(0.048)


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_learning_rate_stays_between_zero_and_the_peak(progress: float, warmup: float) -> None:
    for schedule in ("constant", "cosine"):
        value = learning_rate(3.0, progress, warmup=warmup, schedule=schedule)
        assert -1e-12 <= value <= 3.0 + 1e-12


def test_the_teachers_momentum_rises_to_one() -> None:
    assert teacher_momentum(0.98, 0.0, "cosine") == pytest.approx(0.98)
    assert teacher_momentum(0.98, 1.0, "cosine") == pytest.approx(1.0)
    assert teacher_momentum(0.98, 0.7, "constant") == 0.98


def test_poly_falls_to_the_lowest_learning_rate() -> None:
    assert poly(0.01, 0.0, 0.9, 1e-4) == pytest.approx(0.01)
    assert poly(0.01, 1.0, 0.9, 1e-4) == pytest.approx(1e-4)
    assert poly(0.01, 0.5, 0.9, 1e-4) == pytest.approx(1e-4 + 0.0099 * 0.535886731)
    assert poly(0.01, 0.25, 1.0, 0.0) == pytest.approx(0.0075)


def test_the_schedule_rises_from_a_thousandth_and_falls_in_steps() -> None:
    rates = [
        detection_rate(0.02, k / 24_000, 24_000, 100, (0.75, 0.9166667)) for k in range(24_000)
    ]
    assert rates[0] == pytest.approx(0.02 / 1000)
    assert rates[50] == pytest.approx(0.02 * (0.5 / 1000 + 0.5))
    assert rates[100] == rates[17_999] == 0.02
    assert rates[18_000] == rates[21_999] == pytest.approx(0.002)
    assert rates[22_000] == pytest.approx(0.0002)
    long = [detection_rate(1, k / 90_000, 90_000, 0, (0.6666667, 0.8888889)) for k in range(90_000)]
    falls = [k for k in range(1, 90_000) if long[k] != long[k - 1]]
    assert falls == [60_000, 80_000]
