"""Alignment maps of a trained network with any head."""

import math

import torch
from torch import Tensor

from lewel.nn.ablations import UncoupledHead
from lewel.nn.backbone import Backbone
from lewel.nn.heads import CoupledHead, Encoder, GlobalHead
from lewel.ops.maps import softmax_maps

READABLE = 128  # pixels; a multiple of the stride of every usual convolutional network


@torch.no_grad()
def maps_of(encoder: Encoder, images: Tensor) -> Tensor:
    """The maps (B, K, h, w) of a network in eval mode for images (B, 3, S, S)."""
    features = encoder.backbone(images)
    maps = head_maps(encoder.head, features)
    side = math.isqrt(maps.shape[2])
    return maps.reshape(*maps.shape[:2], side, side)


def head_maps(head: torch.nn.Module, features: Tensor) -> Tensor:
    """Features (B, N, C) -> maps (B, K, N)."""
    if isinstance(head, UncoupledHead):
        return head.make_maps(features)
    if isinstance(head, CoupledHead):
        return head.to_maps(head.project(features))
    if isinstance(head, GlobalHead):
        return softmax_maps(head.project(features))
    raise TypeError(f"{type(head).__name__} has no projector to score locations with")


def map_note(head: torch.nn.Module, method: str) -> str | None:
    """A note on maps that are not the paper's coupled maps; None for those."""
    if isinstance(head, UncoupledHead):
        return {
            "separate": "These maps come from a separate projector, not from g.",
            "random": "This run was trained with random maps: these are random too.",
            "uniform": "This run was trained with uniform maps: its maps are average pooling.",
        }[head.spec.maps]
    if isinstance(head, GlobalHead):
        return (
            f"{method} has no maps of its own: its projector, trained on pooled features, is "
            "applied at each location, and the scores become maps as in LEWEL."
        )
    return None


def readable_size(backbone: Backbone, trained: int) -> int:
    """The size of images to draw maps over: at least 128 px where the network takes them.

    A convolutional network trained on smaller images gives finer maps of larger ones; a transformer
    takes only the size that it was built for.
    """
    if trained >= READABLE:
        return trained
    try:
        locations = backbone.locations(READABLE)
    except (RuntimeError, ValueError, AssertionError):  # each network has its own
        return trained
    return READABLE if math.isqrt(locations) ** 2 == locations else trained


def random_maps(batch: int, many: int, side: int, key: int) -> Tensor:
    """Random maps (B, K, h, w) as in the paper's Table 6, seeded by a key."""
    generator = torch.Generator().manual_seed(key)
    scores = torch.randn(batch, side * side, many, generator=generator)
    return softmax_maps(scores).reshape(batch, many, side, side)
