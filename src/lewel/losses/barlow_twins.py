"""The loss of Barlow Twins: the cross-correlation of two views' embeddings against the identity."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.ops.precision import precise
from lewel.ops.ranks import gather_with_gradient


def cross_correlation(one: Tensor, two: Tensor) -> Tensor:
    """Embeddings of two views, (B, D) and (B, D) of this rank -> (D, D) over those of all ranks.

    Each unit is normalised over the global batch, by a batch norm without weights. Float32 under
    autocast.
    """
    with torch.autocast(one.device.type, enabled=False):
        normalised = [
            F.batch_norm(gather_with_gradient(precise(rows)), None, None, training=True)
            for rows in (one, two)
        ]
        return normalised[0].T @ normalised[1] / len(normalised[0])  # C of Barlow Twins


def redundancy(correlation: Tensor, off_diagonal_weight: float) -> Tensor:
    """sum_i (1 - C_ii)^2 + lambda sum_i sum_{j != i} C_ij^2 of a matrix (D, D) -> scalar."""
    diagonal = correlation.diagonal()
    others = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + off_diagonal_weight * others  # L_BT
