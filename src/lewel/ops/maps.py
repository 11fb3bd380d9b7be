"""Alignment maps. Every map sums to 1 over the spatial locations."""

import torch
from torch import Tensor

from lewel.ops.precision import unit


def softmax_maps(scores: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Scores at each location (B, N, D) -> D maps over the locations, (B, D, N).

    The scores are l2-normalised over the channels at each location; then each channel is
    normalised by a softmax over the locations (section 3.2). Always float32: the values of a map
    differ by little.
    """
    with torch.autocast(scores.device.type, enabled=False):
        return (unit(scores).transpose(1, 2) / temperature).softmax(dim=-1)


def uniform_maps(features: Tensor) -> Tensor:
    """The map (B, 1, N) with which Eq. 1 is global average pooling of features (B, N, C)."""
    batch, locations, _ = features.shape
    return features.new_full((batch, 1, locations), 1 / locations)
