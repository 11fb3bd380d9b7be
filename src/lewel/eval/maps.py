"""The maps of a trained network, whatever its head makes of them."""

import math

import torch
from torch import Tensor

from lewel.nn.ablations import UncoupledHead
from lewel.nn.heads import CoupledHead, Encoder, GlobalHead
from lewel.ops.maps import softmax_maps


@torch.no_grad()
def maps_of(encoder: Encoder, images: Tensor) -> Tensor:
    """The maps (B, K, h, w) that a network in eval mode has for images (B, 3, S, S)."""
    features = encoder.backbone(images)
    maps = look(encoder.head, features)
    side = math.isqrt(maps.shape[2])
    return maps.reshape(*maps.shape[:2], side, side)


def look(head: torch.nn.Module, features: Tensor) -> Tensor:
    """Features (B, N, C) -> maps (B, K, N)."""
    if isinstance(head, UncoupledHead):
        return head.look(features)
    if isinstance(head, CoupledHead | GlobalHead):
        return softmax_maps(head.project(features))
    raise TypeError(f"{type(head).__name__} has no projector to score positions by")


def what_is_shown(head: torch.nn.Module, method: str) -> str | None:
    """A sentence on maps that are not the coupled ones of the paper."""
    if isinstance(head, UncoupledHead):
        return {
            "separate": "These maps come from a projector of their own, apart from g.",
            "random": "This run was trained with random maps: these are drawn by chance too.",
            "uniform": "This run was trained with uniform maps: its maps are average pooling.",
        }[head.maps]
    if isinstance(head, GlobalHead):
        return (
            f"{method} has no maps of its own: its projector, trained on pooled features, is "
            "applied at each position, and the scores become maps as in LEWEL."
        )
    return None


def random_maps(batch: int, many: int, side: int, key: int) -> Tensor:
    """Maps (B, K, h, w) by chance, as those of the paper's Table 6, decided by a key."""
    generator = torch.Generator().manual_seed(key)
    scores = torch.randn(batch, side * side, many, generator=generator)
    return softmax_maps(scores).reshape(batch, many, side, side)
