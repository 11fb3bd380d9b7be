"""Balanced soft assignments by the Sinkhorn-Knopp algorithm, over the rows of all ranks."""

import torch
from torch import Tensor

from lewel.ops.precision import precise
from lewel.ops.ranks import max_over_ranks, mean_over_ranks

LEAST = 1e-30  # far below exp(-2 / epsilon) of SwAV's epsilon


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Cosines of rows and prototypes (N, K) -> codes (N, K) of this rank's rows; each sums to 1.

    exp(scores / epsilon) is scaled in turn so that all prototypes get equal shares of the rows of
    all ranks, and that every row is assigned once. Without gradient.
    """
    scores = precise(scores)
    # A prototype's factor cancels: its best row has 1, so that no exponential overflows and no
    # prototype vanishes. A row that is far from all of them has equal shares.
    codes = ((scores - max_over_ranks(scores.amax(0))) / epsilon).exp().clamp_min(LEAST)
    for _ in range(iterations):
        codes = codes / mean_over_ranks(codes.sum(0))
        codes = codes / codes.sum(1, keepdim=True)  # Q* of SwAV, in the end
    return codes
