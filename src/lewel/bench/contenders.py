"""Training steps to be timed: our methods, and the bound that their backbone alone sets."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lewel.bench.workload import Workload
from lewel.methods.base import Method, Step
from lewel.methods.byol import BYOL
from lewel.methods.lewel_b import LewelB
from lewel.methods.lewel_m import LewelM
from lewel.methods.moco_v2 import MoCoV2
from lewel.nn.compiling import compile_backbones
from lewel.nn.heads import Embeddings
from lewel.nn.teacher import Teacher

OURS = ("LEWEL_B", "BYOL", "LEWEL_M", "MoCo v2")
BOUND = "backbone alone"


class Contender(Protocol):
    """Anything that takes whole training steps."""

    @property
    def module(self) -> nn.Module:
        """All that is kept between two steps, but the optimiser's state."""

    @property
    def optimizer(self) -> Optimizer:
        """What moves the weights."""

    def step(self) -> Tensor:
        """One training step -> its loss."""


class OurStep:
    """One of our methods, stepped as the training loop steps it."""

    def __init__(
        self, method: Method, work: Workload, device: torch.device, compiled: bool = False
    ) -> None:
        self.module = self.method = method.to(device).to(memory_format=work.layout).train()
        self.views = work.new_views(work.layout, device)
        self.optimizer = work.new_optimizer(method)
        if compiled:
            compile_backbones(method, device, print)

    def step(self) -> Tensor:
        out: Step = self.method(self.views)
        out.loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.method.after_step(0.5, out.keys)
        return out.loss.detach()


class Pooled(nn.Module):
    """A backbone whose pooled features are all there is: (B, 3, S, S) -> Embeddings."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.backbone = work.new_backbone()

    def forward(self, images: Tensor, maps: Tensor | None = None) -> Embeddings:
        return Embeddings(self.backbone(images).mean(1))


class BackboneStep:
    """What no method of two views can go below: the backbone forward and backward for each view,
    the teacher's forward for each, the optimiser.
    """

    def __init__(self, work: Workload, device: torch.device) -> None:
        student = Pooled(work)
        self.teacher = Teacher(student, "eman").to(device).to(memory_format=work.layout)
        self.module = self.student = student.to(device).to(memory_format=work.layout).train()
        self.views = work.new_views(work.layout, device)
        self.optimizer = work.new_optimizer(student)

    def step(self) -> Tensor:
        targets = self.teacher(*self.views)
        losses = [
            (self.student(view).pooled * target.pooled).mean()
            for view, target in zip(self.views, reversed(targets), strict=True)
        ]
        loss: Tensor = losses[0] + losses[1]
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def new_method(name: str, work: Workload) -> Method:
    """One of OURS at the sizes of a workload."""
    backbone = work.new_backbone()
    head: dict[str, Any] = {"dim": work.dim, "hidden": work.hidden}
    aligned: dict[str, Any] = {"aligned_dim": work.aligned_dim, "groups": work.groups}
    if name == "BYOL":
        return BYOL(backbone, **head, statistics=work.statistics)
    if name == "LEWEL_B":
        return LewelB(backbone, **head, **aligned, statistics=work.statistics)
    contrast: dict[str, Any] = {"queue": work.queue, "norm_groups": work.fitting_norm_groups()}
    if name == "MoCo v2":
        return MoCoV2(backbone, **head, **contrast)
    if name == "LEWEL_M":
        return LewelM(backbone, **head, **aligned, **contrast)
    raise ValueError(f"{name} is none of {OURS}")


def our_contenders(work: Workload) -> dict[str, Callable[[torch.device], Contender]]:
    """Makers of all steps of ours by name; each makes its networks when it is called."""

    def maker(name: str, compiled: bool = False) -> Callable[[torch.device], Contender]:
        return lambda device: OurStep(new_method(name, work), work, device, compiled)

    makers = {name: maker(name) for name in OURS}
    makers[BOUND] = lambda device: BackboneStep(work, device)
    if work.compile:
        makers |= {f"{name} compiled": maker(name, compiled=True) for name in OURS}
    return makers
