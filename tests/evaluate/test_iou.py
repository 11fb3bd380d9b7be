"""Intersection over union against counting by hand and torchmetrics."""

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassJaccardIndex

from lewel.evaluate.iou import bootstrap, class_iou, count_pixels, mean_iou


def test_a_case_by_hand() -> None:
    targets = torch.tensor([[0, 0, 1], [1, 2, 255]], dtype=torch.uint8)
    predicted = torch.tensor([[0, 1, 1], [1, 1, 0]], dtype=torch.uint8)
    counts = count_pixels(predicted, targets, 4)
    assert counts.tolist() == [[1, 2, 0, 0], [2, 2, 1, 0], [1, 4, 0, 0]]
    result = mean_iou(counts[None], ("ground", "cat", "dog", "never"))
    assert result["per_class"] == {"ground": 1 / 2, "cat": 2 / 4, "dog": 0.0}
    assert result["miou"] == pytest.approx(1 / 3)
    assert result["pixel_accuracy"] == pytest.approx(3 / 5)
    assert result["images"] == 1


def test_it_equals_torchmetrics() -> None:
    draw = torch.Generator().manual_seed(1)
    targets = torch.randint(5, (7, 13, 11), generator=draw, dtype=torch.uint8)
    predicted = torch.where(
        torch.rand(targets.shape, generator=draw) < 0.6,
        targets,
        torch.randint(5, targets.shape, generator=draw, dtype=torch.uint8),
    )
    targets[torch.rand(targets.shape, generator=draw) < 0.1] = 255
    rows = [count_pixels(p, t, 5) for p, t in zip(predicted, targets, strict=True)]
    result = mean_iou(torch.stack(rows), tuple("abcde"))
    reference = MulticlassJaccardIndex(5, average=None, ignore_index=255)
    expected = reference(predicted.long(), targets.long())
    assert list(result["per_class"].values()) == pytest.approx(expected.tolist(), abs=1e-6)
    assert result["miou"] == pytest.approx(expected.mean().item(), abs=1e-6)


def test_the_interval_is_that_of_resampled_images() -> None:
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
    assert low < class_iou(table.sum(0)).mean() < high
