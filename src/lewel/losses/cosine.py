"""Losses by cosine similarity: those of BYOL, LEWEL_B and SimSiam, and PixPro's over pairs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.ops.precision import precise, unit


def normalised_mse(prediction: Tensor, target: Tensor) -> Tensor:
    """2 - 2 sim(prediction, sg(target)), the mean over all leading dimensions.

    (..., D), (..., D) -> scalar. For the aligned embeddings (B, D/h, C) the mean over the second
    dimension is the paper's h/d sum over k. Float32 under autocast.
    """
    return (2 - 2 * similarity(prediction, target)).mean()  # Eq. 5


def negative_cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """-sim(prediction, sg(target)), the mean over all leading dimensions; SimSiam's D.

    (..., D), (..., D) -> scalar. Float32 under autocast.
    """
    return -similarity(prediction, target).mean()  # D of SimSiam


def similarity(prediction: Tensor, target: Tensor) -> Tensor:
    """The cosine of (..., D) and (..., D), (...); no gradient reaches the target."""
    with torch.autocast(prediction.device.type, enabled=False):
        target = precise(target).detach()
        return F.cosine_similarity(precise(prediction), target, dim=-1, eps=1e-12)


def paired_cosine(prediction: Tensor, target: Tensor, pairs: Tensor) -> Tensor:
    """-2 cos(prediction_i, sg(target_j)), the mean over an image's pairs, then over the images.

    (B, N, D), (B, M, D), bool (B, N, M) -> scalar. An image without pairs counts 0. Float32 under
    autocast.
    """
    with torch.autocast(prediction.device.type, enabled=False):
        cosines = unit(prediction) @ unit(target).detach().mT  # (B, N, M)
        total = (cosines * pairs).sum((1, 2))
        return -2 * (total / pairs.sum((1, 2)).clamp_min(1)).mean()  # L_PixPro
