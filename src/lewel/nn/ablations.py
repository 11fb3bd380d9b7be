"""The heads of the paper's ablations (Tables 5 and 6)."""

import torch
from torch import Tensor, nn

from lewel.nn.heads import AlignedHeadSpec, CoupledHead, Embeddings, Encoder, GlobalHead
from lewel.ops.maps import softmax_maps, uniform_maps


class UncoupledHead(CoupledHead):
    """Global and aligned embeddings by maps that do not come from the projector g.

    `separate`: a projector of its own scores the locations. `random`: Gaussian scores, drawn anew
    in each step by `random_maps`. `uniform`: average pooling, so that p is just a second
    projector. Without a global loss (beta = 1) there is no g, and the global embedding is the mean
    of the aligned ones.
    """

    def __init__(self, channels: int, spec: AlignedHeadSpec) -> None:
        super().__init__(channels, spec)
        if spec.maps == "separate":
            self.project_maps = spec.projector(channels, spec.dim)
        self.with_global = spec.aligned_weight < 1
        if not self.with_global and spec.aligned_projector == "own":
            del self.project

    def forward(self, features: Tensor, maps: Tensor | None = None) -> Embeddings:
        """Features (B, N, C) and random maps (B, D, N); other maps are made here."""
        maps = self.make_maps(features) if maps is None else maps
        aligned = self.align(features, maps)
        pooled = self.project(features.mean(1)) if self.with_global else aligned.mean(1)
        return Embeddings(pooled, aligned, maps)

    def make_maps(self, features: Tensor) -> Tensor:
        """The maps (B, D, N); uniform ones (B, h, N), which give one representation."""
        if self.spec.maps == "separate":
            return self.to_maps(self.project_maps(features))
        if self.spec.maps == "random":
            return self.draw_maps(len(features), features.shape[1], features.device)
        return uniform_maps(features).expand(-1, self.spec.groups, -1)

    def draw_maps(self, batch: int, locations: int, device: torch.device) -> Tensor:
        """Random maps (B, D, N)."""
        return softmax_maps(torch.randn(batch, locations, self.spec.dim, device=device))


def random_maps(encoder: Encoder, images: Tensor) -> Tensor | None:
    """One draw of random maps (B, D, N) for all views of images; None where maps are not random."""
    head = encoder.head
    if not isinstance(head, UncoupledHead) or head.spec.maps != "random":
        return None
    locations = encoder.backbone.locations(images.shape[-1])
    return head.draw_maps(len(images), locations, images.device)


def lewel_head(channels: int, spec: AlignedHeadSpec) -> nn.Module:
    """The head for a spec; it has no projector that the losses leave unused."""
    if spec.aligned_weight == 0:
        return GlobalHead(channels, spec)
    return CoupledHead(channels, spec) if spec.maps == "coupled" else UncoupledHead(channels, spec)
