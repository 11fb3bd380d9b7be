"""A summary of metrics has a bounded size, and depends on the lines alone."""

import numpy as np
import pytest

from lewel.pages.curves import charts
from lewel.pages.text import highlights
from lewel.train import summary as module
from lewel.train.summary import Summary
from tests.pages.making import metric_lines


@pytest.mark.parametrize("most", [4096, 32])
def test_rows_are_those_of_a_slow_loop(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", most)
    lines = metric_lines(1000)
    summary = Summary.of(lines)
    loss = np.array([(line["epoch"], line["loss"]) for line in lines if "loss" in line])
    width = 1 if most == 4096 else 32
    assert summary.series["loss"].width == width
    expected = []
    for start in range(0, 1000, width):
        x, y = loss[start : start + width].T
        expected.append((x.mean(), y.min(), y.mean(), y.max()))
    np.testing.assert_allclose(summary.points("loss"), expected)
    assert summary.points("knn")[:, 0].tolist() == [0.0, 10.0]  # rare values stay as they are
    assert summary.step == 1000 and summary.steps == 1001 and summary.epoch == 10.0
    assert summary.recent("loss") == loss[-50:, 1].tolist()


def test_it_does_not_depend_on_how_many_lines_are_added_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST", 32)
    lines = metric_lines(777)
    whole, parts = Summary.of(lines), Summary()
    draw, start = np.random.default_rng(0), 0
    while start < len(lines):
        step = int(draw.integers(1, 200))
        parts.add(lines[start : start + step])
        parts, _ = Summary.from_bytes(parts.to_bytes())
        start += step
    assert parts == whole and parts.to_bytes() == whole.to_bytes()


def test_a_long_run_takes_no_more_memory_than_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (loss, *_) = charts(["run"], [Summary.of(metric_lines(9_000))])
    assert loss.title == "Loss" and 200 < loss.curves[0].line.count("L") < 300
    monkeypatch.setattr(module, "MOST", 64)
    series = Summary.of(metric_lines(32_000)).series["loss"]
    assert len(series.rows) < 64 and len(series.rest) < series.width == 512


def test_other_content_is_refused() -> None:
    for content in (b"", b"PK", Summary.of(metric_lines(3)).to_bytes()[:-20]):
        with pytest.raises(ValueError, match="no summary"):
            Summary.from_bytes(content)


def test_a_first_value_after_training_began_is_not_the_one_before_it() -> None:
    lines = [{"step": step, "epoch": step / 10, "knn": 0.2} for step in (0, 10)]
    assert Summary.of(lines).before("knn") == 0.2
    later = Summary.of(lines[1:])
    assert later.before("knn") is None and later.last("knn") == 0.2
    assert highlights(later)["k-NN accuracy"] == "20.0%"
    assert highlights(Summary.of(lines))["k-NN accuracy"] == "20.0% → 20.0%"
