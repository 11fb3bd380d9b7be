"""A run is compared with the reference of its recipe."""

from typing import Any

import numpy as np
import pytest

from lewel.pages.curves import charts
from lewel.pages.reference import Reference, departures, means_at
from lewel.train.summary import Summary

REFERENCE = Reference(
    recipe="tiny",
    source="2 runs, seeds 0, 1",
    width=1.0,
    curves={
        "loss": np.array([[0.5, 2.0, 1.9, 2.1], [1.5, 1.0, 0.9, 1.1]]),
        "embedding_std": np.array([[0.5, 0.8, 0.8, 0.8], [1.5, 0.9, 0.9, 0.9]]),
        "knn": np.array([[0.0, 0.1, 0.1, 0.1], [2.0, 0.4, 0.38, 0.42]]),
    },
)


def run(loss: float, std: float, knn: float, epochs: float = 2.0) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl: ten steps an epoch, constant in the second epoch."""
    steps = np.arange(1, round(10 * epochs) + 1) / 10
    lines = [
        {"epoch": epoch, "loss": 2.0 if epoch <= 1 else loss, "embedding_std": std}
        for epoch in steps.tolist()
    ]
    return [{"epoch": 0.0, "knn": 0.1}, *lines[:-1], {**lines[-1], "knn": knn}]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (run(1.0, 0.9, 0.4), []),
        (run(1.25, 0.8, 0.7), []),  # within the range and as much again; a better k-NN
        (run(1.5, 0.9, 0.4), ["The loss is 1.5 at epoch 1.5"]),
        (run(0.1, 0.9, 0.4), ["The loss is 0.1 at epoch 1.5"]),
        (run(1.0, 0.2, 0.4), ["The embedding std is 0.2 at epoch 1.5"]),
        (run(1.0, 0.9, 0.2), ["The k-NN accuracy is 20.0% at epoch 2"]),
        (run(9.0, 0.9, 0.1, epochs=1.8), []),  # its second epoch is not complete
    ],
)
def test_a_run_that_leaves_its_reference_gets_one_sentence(
    lines: list[dict[str, Any]], expected: list[str]
) -> None:
    found = departures(REFERENCE, Summary.of(lines))
    assert [sentence.split(",")[0] for sentence in found] == expected
    assert all(sentence.endswith("(tiny).") and "2 runs" in sentence for sentence in found)


def test_a_metric_that_is_only_drawn_is_not_compared() -> None:
    drawn = Reference("tiny", "one run", 1.0, REFERENCE.curves, frozenset({"loss"}))
    assert departures(drawn, Summary.of(run(1.0, 0.1, 0.1))) == []


def test_means_are_those_of_complete_bins() -> None:
    lines = [{"epoch": x, "loss": x} for x in (0.25, 0.5, 0.75, 1.0, 1.25)]
    found = means_at(Summary.of(lines), "loss", np.array([0.5, 1.5]), 1.0)
    assert found[0] == pytest.approx(np.mean([0.25, 0.5, 0.75, 1.0]))
    assert np.isnan(found[1])


def test_charts_draw_the_reference_to_its_last_epoch() -> None:
    lines = Summary.of(run(1.0, 0.9, 0.4, epochs=0.5))
    plain = {chart.title: chart for chart in charts(["a"], [lines])}
    behind = {chart.title: chart for chart in charts(["a"], [lines], REFERENCE.curves)}
    assert plain["Loss"].reference == ("", "")
    line, band = behind["Loss"].reference
    assert line.count("L") == 1 and band.endswith("Z")
    assert behind["Embedding std, student"].reference[1] == ""  # one run has no range
    assert [label for _, label in behind["Loss"].across][-1] == "1.5"
    assert len(behind["Loss"].curves) == 1
