"""PCL's prototypes: centroids of clusters of all images, at several granularities."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lewel.nn.rows import RowBuffers
from lewel.ops.clusters import concentrations, spherical_kmeans
from lewel.ops.ranks import from_rank_0

SMOOTHING = 10.0  # alpha of phi: keeps it from being too large for small clusters


class Centroids(RowBuffers):
    """Centroids, their phi and each image's cluster; all 0 and not used until they are fitted."""

    large = ("centroids", "phi", "labels")  # `fit` alone changes them, between two epochs
    centroids: Tensor  # (K, D), of all granularities, one after the other
    phi: Tensor  # (K,)
    labels: Tensor  # int64 (granularities, images), rows of `centroids`
    fitted: Tensor  # 1 from the first clustering on, before it 0

    def __init__(self, images: int, dim: int, counts: Sequence[int]) -> None:
        super().__init__()
        self.counts = list(counts)
        self.register_buffer("centroids", torch.zeros(sum(counts), dim))
        self.register_buffer("phi", torch.ones(sum(counts)))
        self.register_buffer("labels", torch.zeros(len(counts), images, dtype=torch.long))
        self.register_buffer("fitted", torch.zeros(()))

    @torch.no_grad()
    def fit(
        self,
        points: Tensor,
        temperature: float,
        iterations: int,
        restarts: int,
        progress: Callable[[str, int, int], None],
    ) -> None:
        """Cluster the unit embeddings (images, D) of all images, anew for each granularity."""
        start = 0
        for at, count in enumerate(self.counts):
            done, total = 0, iterations * restarts

            def advance(text: str = f"k-means into {count:,} clusters", total: int = total) -> None:
                nonlocal done
                done += 1
                progress(text, done, total)

            seed = int(torch.randint(1 << 62, ()))
            found = spherical_kmeans(points, count, iterations, restarts, seed, advance)
            phi = concentrations(points, found, SMOOTHING, temperature)
            here = slice(start, start + count)
            self.centroids[here], self.phi[here] = found.centroids, phi
            self.labels[at] = start + found.labels
            start += count
        self.fitted.fill_(1.0)

    def similarities(
        self, query: Tensor, indices: Tensor, many: int
    ) -> list[tuple[Tensor, Tensor]]:
        """For each granularity, unit queries (B, D) of images (B,) against centroids, over phi.

        The own centroid (B,), and `many` others at most (B, r), drawn for all queries and ranks;
        the own one among them is masked by -inf.
        """
        out, start = [], 0
        for labels, count in zip(self.labels, self.counts, strict=True):
            drawn = torch.arange(count, device=query.device)
            if many < count:
                drawn = from_rank_0(torch.randperm(count, device=query.device)[:many])
            drawn, own = drawn + start, labels[indices]
            with torch.autocast(query.device.type, enabled=False):
                positive = (query * self.centroids[own]).sum(1) / self.phi[own]
                negative = query @ self.centroids[drawn].T / self.phi[drawn]
            out.append((positive, negative.masked_fill(own[:, None] == drawn, -torch.inf)))
            start += count
        return out
