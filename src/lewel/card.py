"""What a run says of itself: the card beside its weights, and the summary at its end."""

import json
import platform
import shutil
import subprocess
import sys
import time
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lewel.backbones import MEAN, STD
from lewel.config import PretrainConfig
from lewel.data.sources import Data
from lewel.nn.backbone import exports_of
from lewel.train.folder import RunFolder
from lewel.train.metrics import read_metrics
from lewel.train.run import Training

COUNTERPART = {"lewel_b": "byol", "byol": "lewel_b", "lewel_m": "moco_v2", "moco_v2": "lewel_m"}


def count(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def card(config: PretrainConfig, data: Data, run: Training, folder: RunFolder) -> dict[str, Any]:
    """What the weights are and where they come from."""
    lines = read_metrics(folder.metrics)
    probes = [line for line in lines if "knn" in line]
    return {
        "method": config.method,
        "backbone": config.backbone,
        "stem": config.stem,
        "width": config.width,
        "channels": run.method.student.backbone.channels,
        "exports": exports_of(config.backbone, config.stem, config.width),
        "data": data.unlabelled.name,
        "images": len(data.unlabelled),
        "image_size": config.image_size,
        "mean": MEAN,
        "std": STD,
        "epochs": round(run.step / run.plan.order.steps_per_epoch, 4),
        "steps": run.step,
        "knn_before": probes[0]["knn"] if probes else None,
        "knn": probes[-1]["knn"] if probes else None,
        "classes": data.train.classes if data.train is not None else None,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "lewel": version("lewel"),
        "torch": torch.__version__,
        "git": git_state(),
        "environment": environment(run.fabric.device),
    }


def environment(device: torch.device) -> dict[str, str]:
    """What a result may depend on beside the code: versions and the machine."""
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
    """The commit of the source tree that runs, where there is one."""
    here = Path(__file__).parent
    if not (here.parents[1] / ".git").exists():  # installed, perhaps inside another repository
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def summary(folder: RunFolder, config: PretrainConfig) -> str:
    """What was reached, what was written, and what to do next."""
    about = json.loads(folder.card.read_text(encoding="utf-8"))
    other = COUNTERPART[config.method]
    lines = []
    if about["knn"] is not None:
        lines.append(
            f"k-NN accuracy {about['knn_before']:.1%} before, {about['knn']:.1%} after "
            f"({about['steps']} steps)"
        )
    if folder.bad_images.exists():
        bad = len(folder.bad_images.read_text(encoding="utf-8").splitlines())
        lines.append(f"{bad} unreadable images: see {folder.bad_images}")
    lines += [
        f"wrote {folder.backbone} (weights), {folder.card.name}, {folder.views.name}, "
        f"{folder.metrics.name}",
        "next:",
        f"  {program()} knn {folder.path} --data {config.data}    # judge it"
        if about["knn"] is not None
        else f"  {program()} embed {folder.path} {config.data}    # features of every image",
        f"  {program()} pretrain --recipe {folder.config} --out {folder.path} "
        f"--epochs {2 * config.epochs}    # train on",
        f"  {program()} pretrain --recipe {folder.config} --method {other} --out "
        f"{folder.path.with_name(folder.path.name + '-' + other)}    # compare with {other}",
        f"  import lewel; lewel.load_backbone({str(folder.path)!r})    # Python: a plain network",
    ]
    return "\n".join(lines)


def program() -> str:
    """How the user can call this command again."""
    if shutil.which("lewel"):
        return "lewel"
    script, here = Path(sys.executable).parent / "lewel", Path.cwd()
    return str(script.relative_to(here) if script.is_relative_to(here) else script)
