"""The same training steps built from lightly's modules, as in its examples."""

import copy
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from lewel.bench.steps import TimedStep
from lewel.bench.workload import Workload
from lewel.nn.backbone import RESNETS

LIGHTLY = ("lightly BYOL", "lightly MoCo", "lightly DenseCL")
MISSING = (
    "No baselines are timed: lightly is not installed (pip install 'lewel[bench]'), or --backbone "
    "is not a ResNet."
)


def lightly_steps(work: Workload) -> dict[str, Callable[[torch.device], TimedStep]]:
    """Constructors of lightly's steps by name; empty if it is not installed or lacks the backbone.

    Its modules are built with our widths and biases, so that BYOL and MoCo have exactly our
    parameters, and use our optimiser. The rest follows lightly's examples: four passes with batch
    statistics, contiguous (not channels_last) memory.
    """
    if find_spec("lightly") is None or work.backbone not in RESNETS:
        return {}
    kinds: tuple[Callable[[Workload, torch.device], TimedStep], ...] = (
        LightlyBYOL,
        LightlyMoCo,
        LightlyDenseCL,
    )

    def build(kind: Callable[[Workload, torch.device], TimedStep]) -> Any:
        return lambda device: kind(work, device)

    return {name: build(kind) for name, kind in zip(LIGHTLY, kinds, strict=True)}


def head(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """lightly's projection head with our layers: linear, batch norm, ReLU, linear."""
    from lightly.models.modules.heads import ProjectionHead

    layers = [
        (inputs, hidden, nn.BatchNorm1d(hidden), nn.ReLU(), True),
        (hidden, outputs, None, None, True),
    ]
    out: nn.Module = ProjectionHead(layers)
    return out


class _LightlyStep:
    """Base of lightly's steps: a momentum copy of every trained module, and the optimiser."""

    momentum = 0.98

    def __init__(self, work: Workload, device: torch.device, parts: dict[str, nn.Module]) -> None:
        from lightly.models.utils import deactivate_requires_grad

        copied = {name: part for name, part in parts.items() if not name.startswith("predict")}
        self.teacher = nn.ModuleDict({name: copy.deepcopy(p) for name, p in copied.items()})
        deactivate_requires_grad(self.teacher)
        self.student = nn.ModuleDict(parts)
        self.module = nn.ModuleDict({"student": self.student, "teacher": self.teacher})
        self.module.to(device).train()
        self.views = work.new_views(torch.contiguous_format, device)
        self.optimizer = work.new_optimizer(self.module)

    def update_teacher(self) -> None:
        from lightly.models.utils import update_momentum

        for name, part in self.teacher.items():
            update_momentum(self.student[name], part, self.momentum)

    def step(self) -> Tensor:
        self.update_teacher()
        loss = self.loss(*self.views)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} has no loss")


class LightlyBYOL(_LightlyStep):
    """BYOL, the loss in both directions."""

    def __init__(self, work: Workload, device: torch.device) -> None:
        from lightly.loss import NegativeCosineSimilarity

        backbone = work.new_backbone()
        parts = {
            "backbone": backbone.net,
            "project": head(backbone.channels, work.hidden, work.dim),
            "predict": head(work.dim, work.hidden, work.dim),
        }
        super().__init__(work, device, parts)
        self.criterion = NegativeCosineSimilarity()

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        first, second = self.predicted(one), self.predicted(two)
        target1, target2 = self.target(one), self.target(two)
        out: Tensor = self.criterion(first, target2) + self.criterion(second, target1)
        return 0.5 * out

    def predicted(self, view: Tensor) -> Tensor:
        features = self.student["backbone"](view).flatten(start_dim=1)
        out: Tensor = self.student["predict"](self.student["project"](features))
        return out

    @torch.no_grad()
    def target(self, view: Tensor) -> Tensor:
        out: Tensor = self.teacher["project"](self.teacher["backbone"](view).flatten(start_dim=1))
        return out


class LightlyMoCo(_LightlyStep):
    """MoCo v2, one direction, the teacher's batch shuffled."""

    momentum = 0.999

    def __init__(self, work: Workload, device: torch.device) -> None:
        from lightly.loss import NTXentLoss

        backbone = work.new_backbone()
        projector = head(backbone.channels, work.hidden, work.dim)
        super().__init__(work, device, {"backbone": backbone.net, "project": projector})
        bank = (work.queue, work.dim)
        self.criterion = NTXentLoss(temperature=0.2, memory_bank_size=bank).to(device)

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        query = self.student["project"](self.student["backbone"](one).flatten(start_dim=1))
        out: Tensor = self.criterion(query, self.key(two))
        return out

    @torch.no_grad()
    def key(self, view: Tensor) -> Tensor:
        from lightly.models.utils import batch_shuffle, batch_unshuffle

        shuffled, order = batch_shuffle(view)
        key = self.teacher["project"](self.teacher["backbone"](shuffled).flatten(start_dim=1))
        out: Tensor = batch_unshuffle(key, order)
        return out


class LightlyDenseCL(_LightlyStep):
    """DenseCL, one direction: global and dense embeddings, each with its own memory bank."""

    momentum = 0.999

    def __init__(self, work: Workload, device: torch.device) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules.heads import DenseCLProjectionHead

        backbone = work.new_backbone()
        sizes = (backbone.channels, work.hidden, work.dim)
        parts = {
            "backbone": nn.Sequential(*list(backbone.net.children())[:-2]),
            "project": DenseCLProjectionHead(*sizes),
            "project_local": DenseCLProjectionHead(*sizes),
        }
        super().__init__(work, device, parts)
        bank = (work.queue, work.dim)
        self.global_criterion = NTXentLoss(temperature=0.2, memory_bank_size=bank).to(device)
        self.dense_criterion = NTXentLoss(temperature=0.2, memory_bank_size=bank).to(device)

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        from lightly.models.utils import select_most_similar

        features, query, query_local = self.embed(self.student, one)
        with torch.no_grad():
            others, key, key_local = self.embed(self.teacher, two)
            key_local = select_most_similar(features, others, key_local)
        queries, keys = query_local.flatten(end_dim=1), key_local.flatten(end_dim=1)
        local: Tensor = self.dense_criterion(queries, keys)
        out: Tensor = 0.5 * self.global_criterion(query, key) + 0.5 * local
        return out

    def embed(self, network: nn.ModuleDict, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (B, N, C), the global embedding (B, D), the dense ones (B, N, D)."""
        grid = network["backbone"](view)
        pooled = nn.functional.adaptive_avg_pool2d(grid, 1).flatten(start_dim=1)
        tokens = grid.flatten(start_dim=2).permute(0, 2, 1)
        return tokens, network["project"](pooled), network["project_local"](tokens)
