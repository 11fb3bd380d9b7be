"""The normalised mean square error of BYOL and LEWEL_B."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.ops.precision import precise


def normalised_mse(prediction: Tensor, target: Tensor) -> Tensor:
    """2 - 2 sim(prediction, sg(target)), the mean over all leading dimensions.

    (..., D), (..., D) -> scalar. For the aligned embeddings (B, D/h, C) the mean over the second
    dimension is the paper's h/d sum over k. Float32 under autocast.
    """
    with torch.autocast(prediction.device.type, enabled=False):
        target = precise(target).detach()
        similarity = F.cosine_similarity(precise(prediction), target, dim=-1, eps=1e-12)
        return (2 - 2 * similarity).mean()  # Eq. 5
