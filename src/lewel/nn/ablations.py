"""The heads that the paper compares with its coupled head (tables 5 and 6)."""

from typing import Literal

import torch
from torch import Tensor, nn

from lewel.nn.heads import CoupledHead, Embeddings, Encoder, GlobalHead
from lewel.nn.mlp import MLP
from lewel.ops.maps import softmax_maps, uniform_maps

Maps = Literal["coupled", "separate", "random", "uniform"]


class UncoupledHead(CoupledHead):
    """Global and aligned embeddings by maps that do not come from the projector g.

    `separate`: a projector of its own scores the positions. `random`: Gaussian scores, drawn anew
    in each step by `random_maps`. `uniform`: average pooling, so that p is one more projector
    beside g and nothing else. Without a global loss (`with_global`) there is no g, and the mean of
    the aligned embeddings stands for the image.
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        dim: int,
        *,
        aligned_dim: int,
        groups: int,
        maps: Maps,
        norm: bool = True,
        own_projector: bool = True,
        with_global: bool = True,
    ) -> None:
        super().__init__(
            channels,
            hidden,
            dim,
            aligned_dim=aligned_dim,
            groups=groups,
            norm=norm,
            own_projector=own_projector,
        )
        self.dim, self.maps, self.with_global = dim, maps, with_global
        if maps == "separate":
            self.project_maps = MLP(channels, hidden, dim, norm)
        if not with_global and own_projector:
            del self.project

    def forward(self, features: Tensor, maps: Tensor | None = None) -> Embeddings:
        """Features (B, N, C) and random maps (B, D, N); other maps are made here."""
        maps = self.look(features) if maps is None else maps
        aligned = self.align(features, maps)
        pooled = self.project(features.mean(1)) if self.with_global else aligned.mean(1)
        return Embeddings(pooled, aligned, maps)

    def look(self, features: Tensor) -> Tensor:
        """The maps (B, D, N); uniform ones are as many as make one representation."""
        if self.maps == "separate":
            return softmax_maps(self.project_maps(features))
        if self.maps == "random":
            return self.chance(len(features), features.shape[1], features.device)
        return uniform_maps(features).expand(-1, self.groups, -1)

    def chance(self, batch: int, positions: int, device: torch.device) -> Tensor:
        """Random maps (B, D, N)."""
        return softmax_maps(torch.randn(batch, positions, self.dim, device=device))


def random_maps(encoder: Encoder, images: Tensor) -> Tensor | None:
    """One draw of random maps (B, D, N) for all views of images; None where maps are no chance."""
    head = encoder.head
    if not isinstance(head, UncoupledHead) or head.maps != "random":
        return None
    return head.chance(len(images), encoder.backbone.positions(images.shape[-1]), images.device)


def lewel_head(
    channels: int,
    hidden: int,
    dim: int,
    *,
    aligned_dim: int,
    groups: int,
    aligned_weight: float,
    maps: Maps,
    norm: bool,
    own_projector: bool,
) -> nn.Module:
    """The head that a method needs: nothing that its losses leave unused is built."""
    if aligned_weight == 0:
        return GlobalHead(channels, hidden, dim, norm)
    if maps == "coupled":
        return CoupledHead(
            channels,
            hidden,
            dim,
            aligned_dim=aligned_dim,
            groups=groups,
            norm=norm,
            own_projector=own_projector,
        )
    return UncoupledHead(
        channels,
        hidden,
        dim,
        aligned_dim=aligned_dim,
        groups=groups,
        maps=maps,
        norm=norm,
        own_projector=own_projector,
        with_global=aligned_weight < 1,
    )
