"""Aggregation of features by maps: Eq. 1 and Eq. 2 of the paper, in the cheaper order."""

import torch
from torch import Tensor


def aggregate(features: Tensor, maps: Tensor, groups: int = 1) -> Tensor:
    """Aggregate features (B, N, C) by D maps (B, D, N) into representations (B, D/h, C).

    With one group this is Eq. 1, `maps @ features`. With h groups (Eq. 2) the channels are split
    into h parts, and part j of representation k is aggregated by map (k-1)h + j, counted from 1.
    """
    if groups == 1:
        return maps.to(features.dtype) @ features  # Eq. 1
    batch, locations, channels = features.shape
    grouped_maps = maps.to(features.dtype).reshape(batch, -1, groups, locations).transpose(1, 2)
    parts = features.reshape(batch, locations, groups, -1).transpose(1, 2)  # (B, h, N, C/h)
    return (grouped_maps @ parts).transpose(1, 2).reshape(batch, -1, channels)  # Eq. 2


def aggregate_linear(
    features: Tensor, maps: Tensor, weight: Tensor, bias: Tensor | None, groups: int = 1
) -> Tensor:
    """`linear(aggregate(features, maps, groups))`, in the cheaper of its two orders.

    features (B, N, C), maps (B, D, N), weight (H, C) -> (B, D/h, H). A linear layer commutes with
    the aggregation: it can act on N locations before it or on D/h representations after it.
    """
    locations, channels = features.shape[1:]
    if not project_first_is_cheaper(locations, channels, maps.shape[1], groups):
        return torch.nn.functional.linear(aggregate(features, maps, groups), weight, bias)
    projected = project_locations(features, weight, groups)
    grouped_maps = maps.to(features.dtype).reshape(len(features), -1, groups * locations)
    if bias is None:
        return grouped_maps @ projected
    return torch.baddbmm(bias.to(projected.dtype), grouped_maps, projected)


def project_locations(features: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Each channel group by its columns of a linear layer: (B, N, C), (H, C) -> (B, h N, H)."""
    batch, locations, _ = features.shape
    parts = features.reshape(batch, locations, groups, -1)
    weights = weight.view(len(weight), groups, -1).to(features.dtype)
    projected = torch.einsum("bngc,kgc->bgnk", parts, weights)  # (B, h, N, H)
    return projected.reshape(batch, groups * locations, -1)


def project_first_is_cheaper(locations: int, channels: int, maps: int, groups: int) -> bool:
    """Whether N (C + D) < (D/h) C: multiplications per hidden unit, projecting first or last.

    >>> project_first_is_cheaper(locations=16, channels=512, maps=256, groups=4)
    True
    """
    return locations * (channels + maps) < maps // groups * channels
