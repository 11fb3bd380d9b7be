"""The model card of a run (card.json): its weights, data and environment."""

import platform
import subprocess
import time
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lewel.data.sources.source import Data
from lewel.data.views.transform import preprocessing
from lewel.nn.backbone import MEAN, STD, Backbone, Stem, exports_of
from lewel.train.run import Plan
from lewel.train.summary import Summary


def count(module: nn.Module) -> int:
    """The number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def card(
    step: int,
    plan: Plan,
    device: torch.device,
    data: Data,
    metrics: Summary,
    backbone: Backbone,
    *,
    method: str,
    name: str,
    stem: Stem,
    width: int,
    image_size: int,
    precision: str,
    cudnn_benchmark: bool,
) -> dict[str, Any]:
    """The content of card.json; `name` is the backbone's."""
    return {
        "method": method,
        "backbone": name,
        "stem": stem,
        "width": width,
        "channels": backbone.channels,
        "exports": exports_of(name, stem, width),
        "data": data.unlabelled.name,
        "images": len(data.unlabelled),
        "image_size": image_size,
        "mean": MEAN,
        "std": STD,
        "preprocessing": preprocessing(image_size),
        "epochs": round(step / plan.order.steps_per_epoch, 4),
        "steps": step,
        "precision": precision,
        "cudnn_benchmark": cudnn_benchmark,
        "knn_before": metrics.before("knn"),
        "knn": metrics.last("knn"),
        "classes": data.train.classes if data.train is not None else None,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "lewel": version("lewel"),
        "torch": torch.__version__,
        "git": git_state(),
        "environment": environment(device),
    }


def environment(device: torch.device) -> dict[str, str]:
    """Package versions and the machine, on which results may depend."""
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    packages = ("torchvision", "timm", "lightning-fabric", "numpy", "pillow")
    return {
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "device": f"{device.type} ({named})",
        "threads": str(torch.get_num_threads()),
    }


@lru_cache(maxsize=1)
def git_state() -> str | None:
    """The git commit of the source tree; None for an installed package."""
    here = Path(__file__).parent
    if not (here.parents[2] / ".git").exists():  # installed, perhaps inside another repository
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
