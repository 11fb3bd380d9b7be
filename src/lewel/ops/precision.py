"""Float32 for norms, softmax and losses under autocast."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32; float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def unit(tensor: Tensor) -> Tensor:
    """Rows (..., D) scaled to length 1, in float32 or float64."""
    return F.normalize(precise(tensor), dim=-1)


@contextmanager
def exact_products() -> Iterator[None]:
    """Matrix products in full float32 inside: TF32 has 10 bits of fraction."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
