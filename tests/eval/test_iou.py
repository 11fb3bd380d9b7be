"""Intersection over union against counting by hand and torchmetrics."""

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassJaccardIndex

from lewel.eval.iou import bootstrap, count_pixels, judge_masks, overlap


def test_a_case_by_hand() -> None:
    truth = torch.tensor([[0, 0, 1], [1, 2, 255]], dtype=torch.uint8)
    predicted = torch.tensor([[0, 1, 1], [1, 1, 0]], dtype=torch.uint8)
    counts = count_pixels(predicted, truth, 4)
    assert counts.tolist() == [[1, 2, 0, 0], [2, 2, 1, 0], [1, 4, 0, 0]]
    judged = judge_masks(counts[None], ("ground", "cat", "dog", "never"))
    assert judged["per_class"] == {"ground": 1 / 2, "cat": 2 / 4, "dog": 0.0}
    assert judged["miou"] == pytest.approx(1 / 3)
    assert judged["pixel_accuracy"] == pytest.approx(3 / 5)
    assert judged["images"] == 1


def test_it_is_torchmetrics() -> None:
    draw = torch.Generator().manual_seed(1)
    truth = torch.randint(5, (7, 13, 11), generator=draw, dtype=torch.uint8)
    predicted = torch.where(
        torch.rand(truth.shape, generator=draw) < 0.6,
        truth,
        torch.randint(5, truth.shape, generator=draw, dtype=torch.uint8),
    )
    truth[torch.rand(truth.shape, generator=draw) < 0.1] = 255
    rows = [count_pixels(p, t, 5) for p, t in zip(predicted, truth, strict=True)]
    judged = judge_masks(torch.stack(rows), tuple("abcde"))
    reference = MulticlassJaccardIndex(5, average=None, ignore_index=255)
    expected = reference(predicted.long(), truth.long())
    assert list(judged["per_class"].values()) == pytest.approx(expected.tolist(), abs=1e-6)
    assert judged["miou"] == pytest.approx(expected.mean().item(), abs=1e-6)


def test_the_interval_is_that_of_drawing_images_anew() -> None:
    draw = np.random.default_rng(2)
    both = draw.integers(0, 50, (60, 3))
    counts = np.stack([both, both + draw.integers(0, 30, both.shape), both + 10], 1)
    table = torch.from_numpy(counts)
    means = []
    for _ in range(2000):
        total = counts[draw.integers(0, 60, 60)].sum(0)
        means.append((total[0] / (total[1] + total[2] - total[0])).mean())
    low, high = bootstrap(table)
    assert (low, high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.01)
    assert low < overlap(table.sum(0)).mean() < high
