"""What turns backbone features into embeddings: the global head, and the paper's coupled head."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lewel.nn.backbone import Backbone
from lewel.nn.mlp import MLP
from lewel.ops.maps import softmax_maps
from lewel.ops.ranks import gather


class Embeddings(NamedTuple):
    """What a head makes of one view."""

    pooled: Tensor  # (B, D) the global embedding z
    aligned: Tensor | None = None  # (B, D/h, c) the aligned embeddings z_k
    maps: Tensor | None = None  # (B, D, N) the alignment maps W

    def gathered(self, order: Tensor) -> "Embeddings":
        """The images of all ranks, those that `order` names."""
        return Embeddings(*(None if part is None else gather(part)[order] for part in self))  # type: ignore[arg-type]

    def chunk(self, parts: int) -> list["Embeddings"]:
        """Views that went through together, apart again."""
        pooled = self.pooled.chunk(parts)
        if self.aligned is None or self.maps is None:
            return [Embeddings(z) for z in pooled]
        aligned, maps = self.aligned.chunk(parts), self.maps.chunk(parts)
        return [Embeddings(*view) for view in zip(pooled, aligned, maps, strict=True)]


class GlobalHead(nn.Module):
    """Global average pooling and one projector g: features (B, N, C) -> z (B, D)."""

    def __init__(self, channels: int, hidden: int, dim: int, norm: bool = True) -> None:
        super().__init__()
        self.project = MLP(channels, hidden, dim, norm)

    def forward(self, features: Tensor) -> Embeddings:
        return Embeddings(self.project(features.mean(1)))


class CoupledHead(nn.Module):
    """One projector g gives both the global embedding and the maps (section 3.2, figure 2).

    `groups` is h of Eq. 2; `aligned_dim` is c, the size of each of the D/h aligned embeddings.
    Without its own p (`own_projector`, table 6) g projects what the maps gather too.
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        dim: int,
        *,
        aligned_dim: int,
        groups: int,
        norm: bool = True,
        own_projector: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("the projector's output size d", dim), ("the backbone", channels)):
            if value % groups:
                raise ValueError(f"{name} has {value} channels, not a multiple of h = {groups}")
        self.groups, self.own_projector = groups, own_projector
        self.project = MLP(channels, hidden, dim, norm)
        if own_projector:
            self.project_aligned = MLP(channels, hidden, aligned_dim, norm)

    def forward(self, features: Tensor) -> Embeddings:
        """Features (B, N, C) -> z (B, D), z_k (B, D/h, c), W (B, D, N)."""
        pooled = features.mean(1, keepdim=True)
        out = self.project(torch.cat([pooled, features], 1))  # one call: shared BN statistics
        maps = softmax_maps(out[:, 1:])
        return Embeddings(out[:, 0], self.align(features, maps), maps)

    def align(self, features: Tensor, maps: Tensor) -> Tensor:
        """What the maps (B, D, N) gather, projected by p: (B, D/h, c)."""
        projector = self.project_aligned if self.own_projector else self.project
        return projector.forward_aggregated(features, maps, self.groups)


class Encoder(nn.Module):
    """A backbone and its head; both student and teacher are one: (B, 3, S, S) -> Embeddings."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor, maps: Tensor | None = None) -> Embeddings:
        """With `maps` (B, D, N) the head looks by these."""
        features = self.backbone(images)
        out: Embeddings = self.head(features) if maps is None else self.head(features, maps)
        return out
