"""Spherical k-means and the concentrations of its clusters."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.ops.clusters import Clusters, concentrations, spherical_kmeans


def blobs(sizes: list[int], spread: float = 0.05) -> tuple[Tensor, Tensor]:
    """Unit vectors around as many directions as sizes, and which direction each is from."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    centres = torch.eye(len(sizes), 8, dtype=torch.float64)
    points = centres[labels] + spread * torch.randn(len(labels), 8, dtype=torch.float64)
    return F.normalize(points, dim=1), labels


def test_it_finds_separate_directions() -> None:
    points, truth = blobs([30, 20, 10, 5])
    found = spherical_kmeans(points, 4, iterations=10, restarts=5, seed=0)
    for label in range(4):
        assert len(set(found.labels[truth == label].tolist())) == 1
    assert len(set(found.labels.tolist())) == 4
    for cluster in range(4):
        mean = F.normalize(points[found.labels == cluster].sum(0), dim=0)
        assert torch.allclose(found.centroids[cluster], mean, atol=1e-12)


def test_no_other_assignment_is_nearer_and_more_restarts_are_never_worse() -> None:
    points = F.normalize(torch.randn(60, 5, dtype=torch.float64), dim=1)
    totals = []
    for restarts in (1, 4):
        found = spherical_kmeans(points, 7, iterations=30, restarts=restarts, seed=3)
        similarity = points @ found.centroids.T
        assert torch.equal(similarity.argmax(1), found.labels)
        totals.append(similarity.amax(1).sum().item())
    assert totals[1] >= totals[0]
    again = spherical_kmeans(points, 7, iterations=30, restarts=4, seed=3)
    assert torch.equal(again.labels, found.labels)


def test_a_cluster_of_one_image_is_that_image() -> None:
    points, _ = blobs([1, 1, 1, 1, 1, 1])
    found = spherical_kmeans(points, 6, iterations=3, restarts=1, seed=0)
    assert torch.allclose(found.centroids[found.labels], points, atol=1e-12)


def test_an_empty_cluster_moves_to_a_point() -> None:
    points = torch.cat([torch.eye(1, 4).expand(20, -1), torch.eye(4)[1:]]).double()
    found = spherical_kmeans(points, 4, iterations=5, restarts=1, seed=0)
    assert len(set(found.labels.tolist())) == 4
    assert torch.allclose(found.centroids.norm(dim=1), torch.ones(4).double())


def slow_concentrations(points: Tensor, found: Clusters, tau: float) -> list[float]:
    values: list[float] = []
    for cluster in range(len(found.centroids)):
        own = [p for p, at in zip(points, found.labels, strict=True) if at == cluster]
        apart = [math.dist(p.tolist(), found.centroids[cluster].tolist()) for p in own]
        one = len(own) < 2
        values.append(math.nan if one else sum(apart) / (len(own) * math.log(len(own) + 10)))
    largest = max(value for value in values if not math.isnan(value))
    values = [largest if math.isnan(value) else value for value in values]
    ordered, last = sorted(values), len(values) - 1

    def percentile(share: float) -> float:
        at = share * last
        low = int(at)
        high = min(low + 1, last)
        return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

    clipped = [min(max(v, percentile(0.1)), percentile(0.9)) for v in values]
    return [v * tau / (sum(clipped) / len(clipped)) for v in clipped]


def test_concentrations_equal_the_papers_formula() -> None:
    points, labels = blobs([30, 12, 9, 4, 1, 1], spread=0.2)
    centroids = torch.stack([F.normalize(points[labels == one].sum(0), dim=0) for one in range(6)])
    found = Clusters(centroids, labels)
    phi = concentrations(points, found, 10, 0.2)
    assert phi.tolist() == pytest.approx(slow_concentrations(points, found, 0.2), abs=1e-9)
    assert phi.mean().item() == pytest.approx(0.2)


def test_concentrations_of_copies_are_finite_and_positive() -> None:
    points = torch.eye(4).double().repeat_interleave(torch.tensor([5, 4, 1, 1]), 0)
    found = spherical_kmeans(points, 4, iterations=3, restarts=1, seed=0)
    phi = concentrations(points, found, 10, 0.2)
    assert phi.isfinite().all()
    assert (phi > 0).all()
