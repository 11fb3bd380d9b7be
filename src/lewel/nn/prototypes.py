"""SwAV's prototypes: unit vectors that embeddings are assigned to."""

import torch
from torch import Tensor, nn

from lewel.nn.rows import write_all
from lewel.ops.precision import unit
from lewel.ops.sinkhorn import sinkhorn

ITERATIONS = 3  # of Sinkhorn-Knopp, as in the paper


class Prototypes(nn.Module):
    """K unit vectors (K, D); the scores of embeddings are their cosines with these."""

    def __init__(self, count: int, dim: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.vectors = nn.Parameter(unit(torch.randn(count, dim)))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Embeddings (N, D) -> scores (N, K)."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return unit(embeddings) @ self.vectors.T

    @torch.no_grad()
    def codes(self, scores: Tensor, earlier: Tensor | None = None) -> Tensor:
        """Scores (N, K) of this rank -> codes (N, K), balanced over all ranks.

        `earlier` embeddings (M, D) of this rank take part in the balance.
        """
        if earlier is None:
            return sinkhorn(scores, self.epsilon, ITERATIONS)
        together = torch.cat([scores, self(earlier)])
        return sinkhorn(together, self.epsilon, ITERATIONS)[: len(scores)]

    @torch.no_grad()
    def normalise(self) -> None:
        """Make the prototypes unit vectors again, after a step of the optimiser."""
        write_all(self.vectors, unit(self.vectors))
