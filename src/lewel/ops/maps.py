"""Alignment maps: where a method learns. Every map sums to 1 over the positions."""

import torch
from torch import Tensor

from lewel.ops.precision import unit


def softmax_maps(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Turn per-position scores (B, N, D) into D maps over the positions, (B, D, N).

    The scores are l2-normalised over the channels at each position, then each channel goes through
    a softmax over the positions (section 3.2). Always float32: the maps differ by little.
    """
    with torch.autocast(scores.device.type, enabled=False):
        return (unit(scores).transpose(1, 2) / temperature).softmax(dim=-1)


def uniform_maps(features: Tensor) -> Tensor:
    """The one map (B, 1, N) that makes Eq. 1 the global average pooling of features (B, N, C)."""
    batch, positions, _ = features.shape
    return features.new_full((batch, 1, positions), 1 / positions)
