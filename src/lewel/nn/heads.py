"""Heads from backbone features to embeddings: the global head and the paper's coupled head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from lewel.nn.backbone import Backbone
from lewel.nn.mlp import MLP, DeepMLP
from lewel.ops.maps import softmax_maps
from lewel.ops.ranks import gather

Maps = Literal["coupled", "separate", "random", "uniform"]


class Embeddings(NamedTuple):
    """The output of a head for one view."""

    pooled: Tensor  # (B, D) the global embedding z
    aligned: Tensor | None = None  # (B, K, c) embeddings of maps or of locations, z_k
    maps: Tensor | None = None  # (B, D, N) the alignment maps W
    features: tuple[Tensor, ...] = ()  # (B, ...) features that a loss needs

    def gathered(self, order: Tensor) -> "Embeddings":
        """The rows `order` of the embeddings of all ranks, without the maps."""
        aligned = None if self.aligned is None else gather(self.aligned)[order]
        features = tuple(gather(one)[order] for one in self.features)
        return Embeddings(gather(self.pooled)[order], aligned, None, features)

    def chunk(self, parts: int) -> list["Embeddings"]:
        """Split a batch of several views into views."""

        def split(rows: Tensor | None) -> Sequence[Tensor | None]:
            return [None] * parts if rows is None else rows.chunk(parts)

        pooled, aligned, maps = self.pooled.chunk(parts), split(self.aligned), split(self.maps)
        features = [tuple(one.chunk(parts)[part] for one in self.features) for part in range(parts)]
        return [Embeddings(*view) for view in zip(pooled, aligned, maps, features, strict=True)]


@dataclass(frozen=True)
class HeadSpec:
    """Sizes of projectors and predictors; the defaults are BYOL's."""

    dim: int = 256  # d, of the global embedding
    hidden: int = 4096
    norm: Literal["batch", "none"] = "batch"

    def mlp(self, inputs: int, outputs: int) -> MLP:
        """A projector or predictor of these hidden units and norm."""
        return MLP(inputs, self.hidden, outputs, self.norm == "batch")

    def projector(self, inputs: int, outputs: int) -> MLP | DeepMLP:
        """A projector of two layers, unless a method's own HeadSpec overrides it."""
        return self.mlp(inputs, outputs)


@dataclass(frozen=True)
class AlignedHeadSpec(HeadSpec):
    """A HeadSpec with aligned embeddings; the defaults are LEWEL_B's.

    `maps` and `aligned_projector` are the paper's ablations (Tables 5 and 6).
    """

    aligned_dim: int = 256  # c, of each aligned embedding
    groups: int = 4  # h of Eq. 2
    aligned_weight: float = 0.5  # beta of Eq. 3
    maps: Maps = "coupled"
    map_temperature: float | Literal["learned"] = 1.0  # of the maps' softmax
    aligned_projector: Literal["own", "shared"] = "own"


class GlobalHead(nn.Module):
    """Global average pooling and one projector g: features (B, N, C) -> z (B, D)."""

    project: nn.Module

    def __init__(self, channels: int, spec: HeadSpec) -> None:
        super().__init__()
        self.project = spec.projector(channels, spec.dim)

    def forward(self, features: Tensor) -> Embeddings:
        return Embeddings(self.project(features.mean(1)))


class LinearHead(GlobalHead):
    """Global average pooling and one linear layer: features (B, N, C) -> z (B, D)."""

    def __init__(self, channels: int, dim: int) -> None:
        nn.Module.__init__(self)
        self.project = nn.Linear(channels, dim)


class CoupledHead(nn.Module):
    """One projector g gives both the global embedding and the maps (section 3.2, figure 2).

    Where p is shared (`aligned_projector`, Table 6) g also projects the aggregated features.
    """

    def __init__(self, channels: int, spec: AlignedHeadSpec) -> None:
        super().__init__()
        for name, value in (("the projector", spec.dim), ("the backbone", channels)):
            if value % spec.groups:
                raise ValueError(
                    f"{name} has {value} channels, not a multiple of h = {spec.groups}"
                )
        self.spec = spec
        self.project = spec.projector(channels, spec.dim)
        if spec.map_temperature == "learned" and spec.maps in ("coupled", "separate"):
            self.log_temperature = nn.Parameter(torch.zeros(()))
        if spec.aligned_projector == "own":
            self.project_aligned = spec.projector(channels, spec.aligned_dim)

    def forward(self, features: Tensor) -> Embeddings:
        """Features (B, N, C) -> z (B, D), z_k (B, D/h, c), W (B, D, N)."""
        pooled = features.mean(1, keepdim=True)
        out = self.project(torch.cat([pooled, features], 1))  # one call: shared BN statistics
        maps = self.to_maps(out[:, 1:])
        return Embeddings(out[:, 0], self.align(features, maps), maps)

    def to_maps(self, scores: Tensor) -> Tensor:
        """Scores at each location (B, N, D) -> maps (B, D, N)."""
        given = self.spec.map_temperature
        return softmax_maps(scores, self.log_temperature.exp() if given == "learned" else given)

    def align(self, features: Tensor, maps: Tensor) -> Tensor:
        """Features aggregated by the maps (B, D, N) and projected by p: (B, D/h, c)."""
        own = self.spec.aligned_projector == "own"
        projector = self.project_aligned if own else self.project
        return projector.forward_aggregated(features, maps, self.spec.groups)


class Encoder(nn.Module):
    """A backbone and its head, as student or teacher: (B, 3, S, S) -> Embeddings."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor, maps: Tensor | None = None) -> Embeddings:
        """With `maps` (B, D, N) the head aggregates by these."""
        features = self.backbone(images)
        out: Embeddings = self.head(features) if maps is None else self.head(features, maps)
        return out
