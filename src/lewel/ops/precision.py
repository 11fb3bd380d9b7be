"""Norms, softmax and losses are never rounded to 16 bits."""

import torch
import torch.nn.functional as F
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32, or as it is where it is float64 already."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def unit(tensor: Tensor) -> Tensor:
    """Directions: (..., D) with every row of length 1, in float32 at least."""
    return F.normalize(precise(tensor), dim=-1)
