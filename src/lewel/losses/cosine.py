"""The normalised mean square error of BYOL and LEWEL_B."""

import torch
import torch.nn.functional as F
from torch import Tensor


def normalised_mse(prediction: Tensor, target: Tensor) -> Tensor:
    """2 - 2 sim(prediction, sg(target)), the mean over all leading dimensions.

    (..., D), (..., D) -> scalar. For the aligned embeddings (B, D/h, C) the mean over the second
    dimension is the paper's h/d sum over k. Float32 under autocast.
    """
    with torch.autocast(prediction.device.type, enabled=False):
        if prediction.dtype != torch.float64:
            prediction, target = prediction.float(), target.float()
        similarity = F.cosine_similarity(prediction, target.detach(), dim=-1, eps=1e-12)
        return (2 - 2 * similarity).mean()  # Eq. 5
