"""Float32 for norms, softmax and losses under autocast."""

import torch
import torch.nn.functional as F
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32; float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def unit(tensor: Tensor) -> Tensor:
    """Rows (..., D) scaled to length 1, in float32 or float64."""
    return F.normalize(precise(tensor), dim=-1)
