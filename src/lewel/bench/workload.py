"""The sizes of a benchmark, and the networks and optimisers that all entries share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from lewel.errors import UserError
from lewel.interop.backbones import build_backbone
from lewel.nn.backbone import Backbone
from lewel.nn.teacher import Statistics
from lewel.nn.trainable import Trainable
from lewel.nn.views import Views, whole_views
from lewel.optim.groups import parameter_groups
from lewel.optim.lars import LARS

FROM_PIXELS = 128  # channels_last from this image size, as in a run


@dataclass(frozen=True)
class Workload:
    """Sizes of one comparison: d is `dim`, c `aligned_dim`, h `groups`."""

    backbone: str = "resnet18"
    stem: str = "imagenet"
    width: int = 64
    image_size: int = 64
    batch_size: int = 64
    dim: int = 256
    hidden: int = 4096
    aligned_dim: int = 256
    groups: int = 4
    queue: int = 4096
    norm_groups: int = 8
    statistics: Statistics = "eman"
    optimizer: Literal["sgd", "lars"] = "sgd"
    channels_last: bool | None = None
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dim % self.groups:
            raise UserError(f"--dim {self.dim} is no multiple of --groups {self.groups} (Eq. 2).")
        if self.batch_size < 2:
            raise UserError(f"--batch-size {self.batch_size}: batch norm needs 2 images or more.")

    @property
    def title(self) -> str:
        """Short, for tables and plots."""
        stem = "" if self.stem == "imagenet" else f" ({self.stem} stem)"
        return (
            f"{self.backbone}{stem}, {self.image_size} px, batch {self.batch_size}, "
            f"hidden {self.hidden}, d {self.dim}, h {self.groups}, {self.optimizer}"
            + (", compiled too" if self.compile else "")
        )

    @property
    def layout(self) -> torch.memory_format:
        """The memory layout of our networks and their images."""
        last = self.channels_last
        last = self.image_size >= FROM_PIXELS if last is None else last
        return torch.channels_last if last else torch.contiguous_format

    def fitting_norm_groups(self) -> int:
        """The ShuffleBN groups, or fewer if a group would have less than two images."""
        fits = (g for g in range(self.norm_groups, 0, -1) if self.batch_size % g == 0)
        return next(g for g in fits if g == 1 or self.batch_size >= 2 * g)

    def new_backbone(self) -> Backbone:
        """The same backbone with the same weights for every entry."""
        torch.manual_seed(self.seed)
        backbone = build_backbone(self.backbone, self.stem, self.width, self.image_size)
        if backbone.channels % self.groups:
            raise UserError(
                f"{self.backbone} has {backbone.channels} channels, no multiple of --groups "
                f"{self.groups} (Eq. 2)."
            )
        return backbone

    def new_views(
        self, layout: torch.memory_format, device: torch.device, sizes: Sequence[int] = ()
    ) -> Views:
        """Crops of noise, two of the image size or of these: the content does not affect the time.

        (B, 3, S, S) each.
        """
        noise = torch.Generator().manual_seed(self.seed)
        shapes = [(self.batch_size, 3, size, size) for size in sizes or [self.image_size] * 2]
        crops = [torch.randn(shape, generator=noise) for shape in shapes]
        return whole_views([crop.to(device).contiguous(memory_format=layout) for crop in crops])

    def new_optimizer(self, module: nn.Module) -> Optimizer:
        """The same optimiser for every entry, with a small learning rate."""
        declared = module.groups() if isinstance(module, Trainable) else []
        groups: list[dict[str, Any]] = parameter_groups(module, 1e-6, True, declared)
        if self.optimizer == "lars":
            return LARS(groups, lr=1e-3)
        for group in groups:
            del group["adapt"]
        fused = next(module.parameters()).device.type in ("cpu", "cuda")
        return SGD(groups, lr=1e-4, momentum=0.9, fused=fused)
