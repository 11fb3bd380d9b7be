"""The files of a run folder that are written beside checkpoints and metrics."""

from typing import Any

import torch
import torch.nn.functional as F
from torchvision.utils import save_image

from lewel.config.build import build_dataset
from lewel.config.methods import as_recipe
from lewel.config.pretrain import PretrainConfig
from lewel.config.settings import write_yaml
from lewel.data.pack.urls import shown
from lewel.data.views.loader import Samples, finish_views
from lewel.files import write_atomically
from lewel.tasks.healing import heal
from lewel.tasks.pretrain_parts import Parts
from lewel.train.card import card
from lewel.train.checkpoint import State
from lewel.train.metrics import MetricsReader
from lewel.train.run import Plan
from lewel.train.run_folder import RunFolder
from lewel.train.summary import Summary

CPU = torch.device("cpu")


def write_config(folder: RunFolder, config: PretrainConfig) -> None:
    """Write the settings of a run, for its owner alone where a URL holds credentials."""
    private = shown(config.data) != config.data
    write_atomically(folder.config, lambda aside: write_yaml(as_recipe(config), aside), private)


def draw_views(dataset: Samples, plan: Plan, folder: RunFolder) -> None:
    """A picture of what the network will see: eight images, one column each, one row a view."""
    keys = next(plan.order.keys(0, 1))[:8]
    views = finish_views(dataset.__getitems__(keys), CPU, (0.0,) * 3, (1.0,) * 3)
    side = max(view.shape[-1] for view in views)
    margins = [side - view.shape[-1] for view in views]  # of small crops, filled with black
    picture = torch.cat([F.pad(v, (0, m, 0, m)) for v, m in zip(views, margins, strict=True)])
    write_atomically(
        folder.views, lambda aside: save_image(picture, aside, nrow=len(keys), format="PNG")
    )


def describe(parts: Parts, metrics: Summary, step: int) -> dict[str, Any]:
    """The content of card.json after a step."""
    config = parts.config
    return card(
        step,
        parts.plan,
        parts.fabric.device,
        parts.data,
        metrics,
        parts.method.student.backbone,
        method=config.method,
        name=config.backbone,
        stem=config.stem,
        width=config.width,
        image_size=config.image_size,
        precision=config.precision,
        cudnn_benchmark=config.cudnn_benchmark,
    )


def restore_files(folder: RunFolder, parts: Parts, state: State, fault: str | None) -> str:
    """Make the missing and damaged files of a finished run again; what was done, as text."""
    step, images = int(state["step"]), parts.data.unlabelled
    parts.method.load_state_dict(state["method"])
    return heal(
        folder,
        parts.method.student,
        step,
        fault,
        describe=lambda: describe(parts, MetricsReader(folder.metrics).update(), step),
        draw=lambda: draw_views(build_dataset(parts.config, images), parts.plan, folder),
        configure=lambda: write_config(folder, parts.config),
    )
