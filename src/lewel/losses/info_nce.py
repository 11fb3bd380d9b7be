"""InfoNCE, the contrastive loss of MoCo v2 and LEWEL_M."""

import torch
from torch import Tensor

from lewel.ops.precision import precise


def similarities(query: Tensor, key: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines of unit queries (M, D) to their keys (M, D) and to others (K, D): (M,), (M, K)."""
    with torch.autocast(query.device.type, enabled=False):
        return (query * key).sum(1), query @ others.T


def info_nce(positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """-log of the positive's softmax probability among all candidates, the mean over the rows.

    Cosine similarities of the positives (M,) and of K negatives each (M, K) -> scalar. A negative
    of -inf is ignored. Eq. 4's denominator is read as the usual sum of exponentials. Float32
    under autocast.
    """
    return info_nce_rows(positive, negative, temperature).mean()


def info_nce_rows(positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """The same for each row, (M,)."""
    with torch.autocast(positive.device.type, enabled=False):
        candidates = torch.cat([precise(positive)[:, None], precise(negative)], 1) / temperature
        return candidates.logsumexp(1) - candidates[:, 0]  # Eq. 4
