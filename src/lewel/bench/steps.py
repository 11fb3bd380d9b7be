"""Training steps to time: our methods, and a lower bound from the backbone alone."""

from collections.abc import Callable
from dataclasses import fields, replace
from inspect import Parameter, signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lewel.bench.workload import Workload
from lewel.config.methods import GROUPS, hints_of
from lewel.config.pretrain import PretrainConfig
from lewel.config.sizes import crop_sizes
from lewel.methods.base import Method, Step
from lewel.methods.registry import all_methods
from lewel.nn.compile import compile_backbones
from lewel.nn.heads import Embeddings
from lewel.nn.teacher import Teacher

BOUND = "backbone alone"
IMAGES = 20_000  # in the data, for methods that keep something for each


class TimedStep(Protocol):
    """A complete training step."""

    @property
    def module(self) -> nn.Module:
        """The state between two steps, except the optimiser's."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimiser of the step."""

    def step(self) -> Tensor:
        """One training step -> its loss."""


class OurStep:
    """A step of one of our methods, as in the training loop."""

    def __init__(
        self, method: Method, work: Workload, device: torch.device, compiled: bool = False
    ) -> None:
        self.module = self.method = method.to(device).to(memory_format=work.layout).train()
        self.views = work.new_views(work.layout, device, bench_sizes(method, work))
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
    """A backbone with global average pooling and no head: (B, 3, S, S) -> Embeddings."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.backbone = work.new_backbone()

    def forward(self, images: Tensor, maps: Tensor | None = None) -> Embeddings:
        return Embeddings(self.backbone(images).mean(1))


class BackboneStep:
    """The lower bound of any method with two views: forward and backward of the backbone and
    forward of the teacher for each view, and the optimiser.
    """

    def __init__(self, work: Workload, device: torch.device) -> None:
        student = Pooled(work)
        self.teacher = Teacher(student).to(device).to(memory_format=work.layout)
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


def bench_sizes(method: Method, work: Workload) -> list[int]:
    """The side of each crop that a method takes by default, in pixels."""
    config = PretrainConfig(method=method.about.name, image_size=work.image_size)
    return crop_sizes(config)


def new_method(kind: type[Method], work: Workload) -> Method:
    """A method with the sizes of a workload and its constructor's other defaults."""
    given: dict[str, Any] = {}
    for name, parameter in signature(kind.__init__).parameters.items():
        if name in GROUPS:
            empty = parameter.default is Parameter.empty
            spec: Any = hints_of(kind)[name]() if empty else parameter.default
            sizes = {f.name: getattr(work, f.name) for f in fields(spec) if hasattr(work, f.name)}
            if "norm_groups" in sizes:
                sizes["norm_groups"] = work.fitting_norm_groups()
            if getattr(spec, "statistics", "ema") == "ema":  # these use ShuffleBN in a run
                sizes.pop("statistics", None)
            given[name] = replace(spec, **sizes)
    if "images" in signature(kind.__init__).parameters:
        given["images"] = IMAGES
    return kind(work.new_backbone(), **given)


def our_steps(work: Workload) -> dict[str, Callable[[torch.device], TimedStep]]:
    """Constructors of our steps by name; networks are built when they are called."""

    def build(kind: type[Method], compiled: bool = False) -> Callable[[torch.device], TimedStep]:
        return lambda device: OurStep(new_method(kind, work), work, device, compiled)

    ours = {kind.about.title: kind for kind in all_methods()}
    builders = {title: build(kind) for title, kind in ours.items()}
    builders[BOUND] = lambda device: BackboneStep(work, device)
    if work.compile:
        builders |= {
            f"{title} compiled": build(kind, compiled=True) for title, kind in ours.items()
        }
    return builders
