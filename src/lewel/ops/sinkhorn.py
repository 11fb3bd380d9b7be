"""Balanced soft assignments by the Sinkhorn-Knopp algorithm, over the rows of all ranks."""

import torch
from torch import Tensor

from lewel.ops.precision import precise
from lewel.ops.ranks import mean_over_ranks


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Cosines of rows and prototypes (N, K) -> codes (N, K) of this rank's rows; each sums to 1.

    exp(scores / epsilon) is scaled in turn so that all prototypes get equal shares of the rows of
    all ranks, and that every row is assigned once. Constant factors cancel. Without gradient.
    """
    codes = ((precise(scores) - 1) / epsilon).exp()  # at most 1: no exponential overflows
    for _ in range(iterations):
        codes = codes / mean_over_ranks(codes.sum(0))
        codes = codes / codes.sum(1, keepdim=True)  # Q* of SwAV, in the end
    return codes
