"""Heads of the dense methods: embeddings of locations (DenseCL, PixPro) and of regions (ReSim)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lewel.nn.backbone import ResNetBackbone, grid_tokens
from lewel.nn.heads import Embeddings, Encoder, GlobalHead, HeadSpec
from lewel.ops.precision import unit

Levels = Literal["c4", "fpn"]


class DenseHead(GlobalHead):
    """A global projector and one for each location: features (B, N, C) -> (B, D), (B, N, D)."""

    def __init__(self, channels: int, spec: HeadSpec) -> None:
        super().__init__(channels, spec)
        self.project_locations = spec.mlp(channels, spec.dim)

    def forward(self, features: Tensor) -> Embeddings:
        pooled = self.project(features.mean(1))
        return Embeddings(pooled, self.project_locations(features), features=(features,))


class LocationHead(nn.Module):
    """A projector for each location: features (B, N, C) -> (B, N, D).

    With `instance` a second one projects the pooled features; without, the global embedding is the
    mean over the locations, which no loss uses.
    """

    def __init__(self, channels: int, spec: HeadSpec, instance: bool) -> None:
        super().__init__()
        self.project_locations = spec.mlp(channels, spec.dim)
        self.project = spec.mlp(channels, spec.dim) if instance else None

    def forward(self, features: Tensor) -> Embeddings:
        locations = self.project_locations(features)
        if self.project is None:
            return Embeddings(locations.mean(1), locations)
        return Embeddings(self.project(features.mean(1)), locations)


class Propagation(nn.Module):
    """PixPro's pixel propagation: every location becomes a sum over similar ones.

    Embeddings (B, N, D) -> (B, N, D). The weights are a self-similarity map (B, N, N), positive
    cosine similarities raised to a power; the values come from one linear layer, normalised.
    """

    def __init__(self, dim: int, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.transform = nn.Linear(dim, dim)

    def forward(self, locations: Tensor) -> Tensor:
        values = unit(self.transform(locations))
        with torch.autocast(values.device.type, enabled=False):
            return similarity_maps(locations, self.sharpness) @ values


def similarity_maps(locations: Tensor, sharpness: float) -> Tensor:
    """max(cos(x_i, x_j), 0) ^ sharpness of all pairs of locations: (B, N, D) -> (B, N, N)."""
    rows = unit(locations)
    return (rows @ rows.mT).clamp_min(0).pow(sharpness)


class RegionHead(GlobalHead):
    """MoCo v2's projector of C5, and layers of `region_dim` channels on C4 or on C4 and C3 (FPN).

    The features of its embeddings are the maps (B, region_dim, H, W) that regions are cut from.
    """

    def __init__(
        self, channels: tuple[int, int, int], spec: HeadSpec, levels: Levels, region_dim: int
    ) -> None:
        super().__init__(channels[2], spec)
        self.levels = levels
        c3, c4, c5 = channels
        if levels == "c4":
            self.smooth = nn.Conv2d(c4, region_dim, 3, padding=1)
            return
        self.lateral5, self.lateral4, self.lateral3 = (
            nn.Conv2d(one, region_dim, 1) for one in (c5, c4, c3)
        )
        self.smooth4, self.smooth3 = (
            nn.Conv2d(region_dim, region_dim, 3, padding=1) for _ in range(2)
        )

    def forward(self, features: Tensor) -> Embeddings:
        """Features (B, N, C) of C5 alone, for evaluations: the global embedding."""
        return Embeddings(self.project(features.mean(1)))

    def regions(self, c3: Tensor, c4: Tensor, c5: Tensor) -> tuple[Tensor, ...]:
        """The maps of C4, and with an FPN of C3: (B, region_dim, H, W) each."""
        if self.levels == "c4":
            return (self.smooth(c4),)
        upper = add_enlarged(self.lateral4(c4), self.lateral5(c5))
        lower = add_enlarged(self.lateral3(c3), upper)
        return self.smooth4(upper), self.smooth3(lower)


def add_enlarged(lower: Tensor, upper: Tensor) -> Tensor:
    """The top-down path of an FPN: a coarser map is repeated to the size of a finer one."""
    return lower + F.interpolate(upper, lower.shape[-2:], mode="nearest")


class StagedEncoder(Encoder):
    """A ResNet and a RegionHead, as student or teacher: (B, 3, S, S) -> Embeddings."""

    backbone: ResNetBackbone
    head: RegionHead

    def forward(self, images: Tensor, maps: Tensor | None = None) -> Embeddings:
        c3, c4, c5 = self.backbone.stages(images)
        pooled = self.head(grid_tokens(c5)).pooled
        return Embeddings(pooled, features=self.head.regions(c3, c4, c5))
