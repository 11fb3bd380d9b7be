"""The loss of Barlow Twins: the cross-correlation of two views' embeddings against the identity."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.ops.precision import precise
from lewel.ops.ranks import ranks, sum_with_gradient

EPSILON = 1e-5  # of the batch norm


def cross_correlation(one: Tensor, two: Tensor) -> Tensor:
    """Embeddings of two views, (B, D) and (B, D) of this rank -> (D, D) over those of all ranks.

    Each unit is normalised over the global batch, by a batch norm without weights. Float32 under
    autocast. A rank keeps its own rows only: sums of D and of D x D numbers are exchanged.
    """
    with torch.autocast(one.device.type, enabled=False):
        rows = [normalised(precise(view)) for view in (one, two)]
        total = ranks() * len(one)
        return sum_with_gradient(rows[0].T @ rows[1]) / total  # C of Barlow Twins


def normalised(rows: Tensor) -> Tensor:
    """Rows (B, D) of this rank normalised by mean and variance over the rows of all ranks."""
    if ranks() == 1:
        return F.batch_norm(rows, None, None, training=True, eps=EPSILON)
    total = ranks() * len(rows)
    centred = rows - sum_with_gradient(rows.sum(0)) / total
    return centred * (sum_with_gradient(centred.square().sum(0)) / total + EPSILON).rsqrt()


def redundancy(correlation: Tensor, off_diagonal_weight: float) -> Tensor:
    """sum_i (1 - C_ii)^2 + lambda sum_i sum_{j != i} C_ij^2 of a matrix (D, D) -> scalar."""
    diagonal = correlation.diagonal()
    others = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + off_diagonal_weight * others  # L_BT
