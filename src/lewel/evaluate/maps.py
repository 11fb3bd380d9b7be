"""Alignment maps of a trained network with any head."""

import math

import torch
from torch import Tensor

from lewel.nn.ablations import UncoupledHead
from lewel.nn.backbone import Backbone, grid_tokens
from lewel.nn.dense_heads import DenseHead, LocationHead, RegionHead, StagedEncoder
from lewel.nn.heads import CoupledHead, Encoder, GlobalHead
from lewel.ops.maps import softmax_maps

PROTOTYPE_TEMPERATURE = 0.1  # SwAV's
READABLE = (128, 256)  # pixels; multiples of the stride of every usual convolutional network
FINE = 8  # locations a side that show where something is


@torch.no_grad()
def maps_of(encoder: Encoder, images: Tensor) -> Tensor:
    """The maps (B, K, h, w) of a network in eval mode for images (B, 3, S, S)."""
    return maps_and_features(encoder, images)[0]


@torch.no_grad()
def maps_and_features(encoder: Encoder, images: Tensor) -> tuple[Tensor, Tensor]:
    """The maps (B, K, h, w) of images (B, 3, S, S), and the features (B, N, C) of the backbone."""
    if isinstance(encoder, StagedEncoder):  # maps of the layer that regions are cut from
        c3, c4, c5 = encoder.backbone.stages(images)
        features = grid_tokens(c5)
        maps = softmax_maps(grid_tokens(encoder.head.regions(c3, c4, c5)[0]))
    else:
        features = encoder.backbone(images)
        maps = head_maps(encoder.head, features)
    side = math.isqrt(maps.shape[2])
    return maps.reshape(*maps.shape[:2], side, side), features


def head_maps(head: torch.nn.Module, features: Tensor) -> Tensor:
    """Features (B, N, C) -> maps (B, K, N)."""
    if isinstance(head, UncoupledHead):
        return head.make_maps(features)
    if isinstance(head, CoupledHead):
        return head.to_maps(head.project(features))
    if isinstance(head, DenseHead | LocationHead):
        return softmax_maps(head.project_locations(features))
    if isinstance(head, GlobalHead):
        prototypes, scores = prototypes_of(head), head.project(features)
        return softmax_maps(scores) if prototypes is None else prototype_maps(prototypes(scores))
    raise TypeError(f"{type(head).__name__} has no projector to score locations with")


def prototype_maps(scores: Tensor) -> Tensor:
    """Scores of prototypes at each location (B, N, K) -> where each is active, maps (B, K, N).

    A softmax over the prototypes at each location, by SwAV's temperature, then each prototype's
    probabilities are divided by their sum over the locations.
    """
    active = (scores / PROTOTYPE_TEMPERATURE).softmax(-1).transpose(1, 2)
    return active / active.sum(2, keepdim=True).clamp_min(torch.finfo(active.dtype).tiny)


def prototypes_of(head: torch.nn.Module) -> torch.nn.Module | None:
    """The prototypes of SwAV's head; None for other heads."""
    found = getattr(head, "prototypes", None)
    own = isinstance(found, torch.nn.Module) and isinstance(head, GlobalHead)
    return found if own else None


def map_note(head: torch.nn.Module, method: str) -> str | None:
    """A note on maps that are not the paper's coupled maps; None for those."""
    if isinstance(head, UncoupledHead):
        return {
            "separate": "These maps come from a separate projector, not from g.",
            "random": "This run was trained with random maps: these are random too.",
            "uniform": "This run was trained with uniform maps: its maps are average pooling.",
        }[head.spec.maps]
    if isinstance(head, DenseHead | LocationHead):
        return (
            f"{method} learns no maps but embeddings of locations: the channels of its projector "
            "of locations become maps as in LEWEL."
        )
    if isinstance(head, RegionHead):
        return (
            f"{method} learns no maps but embeddings of windows: the channels of the layer that "
            "windows are cut from become maps as in LEWEL."
        )
    if prototypes_of(head) is not None:
        return (
            f"These maps show where each prototype of {method} is active: its projector, trained "
            "on pooled features, is applied at each location."
        )
    if isinstance(head, GlobalHead):
        return (
            f"{method} has no maps of its own: its projector, trained on pooled features, is "
            "applied at each location, and the scores become maps as in LEWEL."
        )
    return None


def readable_size(backbone: Backbone, trained: int) -> int:
    """The size of images to draw maps over: 128 px, or 256 where maps of 128 px are coarse.

    A convolutional network trained on smaller images gives finer maps of larger ones; a transformer
    takes only the size that it was built for.
    """
    best = trained
    for size in (one for one in READABLE if one > trained):
        try:
            if best >= READABLE[0] and backbone.locations(best) >= FINE**2:
                break
            locations = backbone.locations(size)
        except (RuntimeError, ValueError, AssertionError):  # each network has its own
            break
        if math.isqrt(locations) ** 2 != locations:
            break
        best = size
    return best


def random_maps(batch: int, many: int, side: int, key: int) -> Tensor:
    """Random maps (B, K, h, w) as in the paper's Table 6, seeded by a key."""
    generator = torch.Generator().manual_seed(key)
    scores = torch.randn(batch, side * side, many, generator=generator)
    return softmax_maps(scores).reshape(batch, many, side, side)
