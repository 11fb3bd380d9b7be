"""Spherical k-means over the ranks of a run, and how concentrated its clusters are (PCL)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.ops.ranks import gather_parts, own_part, sum_over_ranks

_SIMILARITIES = 1 << 24  # of points to centroids that are computed at once: 64 MB in float32
SAME = 1e-6  # relative difference of sums of similarities that rounding may cause


class Clusters(NamedTuple):
    """Clusters of n unit vectors."""

    centroids: Tensor  # (k, D), of length 1
    labels: Tensor  # int64 (n,), the cluster of each point


def spherical_kmeans(
    points: Tensor,
    clusters: int,
    iterations: int,
    restarts: int,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> Clusters:
    """The best of several k-means by cosine similarity: unit vectors (n, D) -> k clusters.

    Each restart begins with k of the points, drawn by the seed. An empty cluster moves to the point
    that is least similar to its centroid. All ranks give the same points; each assigns its part of
    them. `advance` is called after each iteration.
    """
    draw = torch.Generator().manual_seed(seed)
    best, highest = None, -math.inf
    for _ in range(restarts):
        first = torch.randperm(len(points), generator=draw)[:clusters].to(points.device)
        centroids = points[first]
        for _ in range(iterations):
            centroids = _means(points, *_assign(points, centroids), centroids)
            advance()
        labels, similarity = _assign(points, centroids)
        total = float(similarity.double().sum())
        # Of equal clusterings the first one, whatever the order of summation.
        if best is None or total > highest + SAME * abs(highest):
            best, highest = Clusters(centroids, labels), total
    assert best is not None
    return best


def _assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point (n,), and the similarity to it (n,)."""
    rows = max(1, _SIMILARITIES // len(centroids))
    found = [(part @ centroids.T).max(1) for part in torch.split(own_part(points), rows)]
    similarity = torch.cat([one.values for one in found])
    labels = torch.cat([one.indices for one in found])
    return gather_parts(labels, len(points)), gather_parts(similarity, len(points))


def _means(points: Tensor, labels: Tensor, similarity: Tensor, before: Tensor) -> Tensor:
    """The centroids (k, D) of labelled points; an empty cluster gets a point far from its own."""
    sums = torch.zeros_like(before).index_add_(0, own_part(labels), own_part(points))
    centroids = F.normalize(sum_over_ranks(sums), dim=1)
    empty = (torch.bincount(labels, minlength=len(before)) == 0).nonzero()[:, 0]
    centroids[empty] = points[similarity.argsort(stable=True)[: len(empty)]]
    return centroids


def concentrations(points: Tensor, found: Clusters, smoothing: float, mean: float) -> Tensor:
    """phi of each cluster (k,): a temperature that is low where the points are concentrated.

    The mean distance to the centroid over log(points + smoothing), the highest of all for clusters
    of one point, clipped to the 10th to 90th percentile and scaled to a mean. Where clusters hold
    copies of one point, phi stays above a thousandth of the mean.
    """
    rows = max(1, _SIMILARITIES // points.shape[1])
    pairs = zip(torch.split(points, rows), torch.split(found.labels, rows), strict=True)
    distance = torch.cat([(part - found.centroids[to]).norm(dim=1) for part, to in pairs])
    count = torch.bincount(found.labels, minlength=len(found.centroids))
    total = distance.new_zeros(len(count)).index_add_(0, found.labels, distance)
    phi = total / count.clamp_min(1) / (count + smoothing).to(total).log()  # phi of PCL
    phi = torch.where(count > 1, phi, phi.max())
    low, high = torch.quantile(phi.double(), phi.new_tensor([0.1, 0.9], dtype=torch.float64))
    phi = phi.clamp(low, high)
    least = torch.finfo(phi.dtype).tiny
    return (phi.clamp_min(least) * (mean / phi.mean().clamp_min(least))).clamp_min(mean / 1000)
