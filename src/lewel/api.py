"""What lewel does, from Python: `pretrain` a backbone, `load_backbone` it afterwards."""

import json
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from torchvision.models import ResNet
from torchvision.utils import save_image

from lewel.build import (
    MEAN,
    STD,
    build_backbone,
    build_dataset,
    build_fabric,
    build_method,
    build_optimizer,
    build_plan,
    build_probe,
    peak_rate,
)
from lewel.config import PretrainConfig, differences, read_yaml, resolve, write_yaml
from lewel.data.loader import TwoViews, finish_views
from lewel.data.sources import Data, open_data
from lewel.errors import UserError
from lewel.methods.base import Method
from lewel.recipes import read_recipe
from lewel.train.checkpoint import Checkpoints, write_atomically
from lewel.train.display import Display
from lewel.train.folder import RunFolder
from lewel.train.loop import Plan, Training, train
from lewel.train.metrics import Metrics, read_metrics
from lewel.train.monitor import BadImages


def pretrain(
    data: str | None = None,
    *,
    recipe: str | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    **overrides: Any,
) -> Path:
    """Pre-train a backbone on images without labels, or go on where an earlier call stopped.

    `data` is a folder, a list file or `scenes`; `recipe` a shipped name or a YAML file; every
    other value of the configuration is a keyword (`epochs=20, optim={"lr": 0.3}`). Returns the
    run folder.
    """
    console = console or Console()
    config = configure(data, recipe, overrides)
    opened = open_data(config.data, image_size=config.image_size, limit=config.limit)
    parts = Parts(config, opened)  # mistakes show before anything is written
    name = opened.unlabelled.name
    folder = RunFolder(Path(out) if out else Path("runs") / f"{name}-{config.method}")
    folder.open()
    try:
        _run(parts, folder, console)
    finally:
        folder.close()
    return folder.path


class Parts:
    """What a configuration and its data give before a run folder is touched."""

    def __init__(self, config: PretrainConfig, data: Data) -> None:
        self.config, self.data = config, data
        self.fabric = build_fabric(config)
        self.plan = build_plan(config, len(data.unlabelled), self.fabric.device)
        self.method = build_method(config)


def configure(data: str | None, recipe: str | None, overrides: dict[str, Any]) -> PretrainConfig:
    """The checked configuration of a run, its data path made absolute."""
    given = read_recipe(recipe) if recipe else {}
    if data is not None:
        overrides = {**overrides, "data": str(data)}
    config = resolve(given, overrides)
    if Path(config.data).exists():
        config = config.model_copy(update={"data": str(Path(config.data).resolve())})
    return config


def describe(config: PretrainConfig) -> dict[str, Any]:
    """What a run would be, without starting it: images, steps, parameters."""
    opened = open_data(config.data, image_size=config.image_size, limit=config.limit)
    parts = Parts(config, opened)
    method = parts.method
    return {
        "images": len(opened.unlabelled),
        "steps": parts.plan.steps,
        "learning rate": peak_rate(config),
        "parameters of the backbone": count(method.student.backbone),
        "parameters trained": sum(p.numel() for p in method.parameters() if p.requires_grad),
        "positions of a map": (config.image_size // method.student.backbone.stride) ** 2,
    }


CPU = torch.device("cpu")


def count(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def _run(parts: Parts, folder: RunFolder, console: Console) -> None:
    """One process's share of a run, from wherever it stands to its end."""
    config, data, fabric = parts.config, parts.data, parts.fabric
    plan, method = parts.plan, parts.method

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if folder.config.exists():
        refuse_another_run(folder, config)
    if config.channels_last:
        method.to(memory_format=torch.channels_last)
    fabric.launch()
    method.to(fabric.device)
    dataset = build_dataset(config, data.unlabelled)
    checkpoints = Checkpoints(folder.checkpoints, config.keep_checkpoints)
    state = checkpoints.load(say)
    step = 0 if state is None else int(state["step"])
    for note in (*data.notes, *introduction(config, data, plan, method, fabric.device)):
        say(note)
    if step >= plan.steps:
        say(f"This run is finished: all {plan.steps} steps are done. --epochs N trains for longer.")
        return
    write_atomically(folder.config, lambda aside: write_yaml(config, aside))
    if step == 0:
        draw_views(dataset, plan, folder)
    run = Training(
        fabric=fabric,
        method=method,
        optimizer=build_optimizer(method, config),
        plan=plan,
        dataset=dataset,
        checkpoints=checkpoints,
        metrics=Metrics(folder.metrics, step),
        bad_images=BadImages(folder.bad_images, len(data.unlabelled)),
        display=Display(plan.steps, step, plan.order.steps_per_epoch, console),
        probe=build_probe(config, data, method.student.backbone, fabric.device, plan.workers),
        on_save=lambda run: folder.export(
            run.method.student.backbone.net,
            run.method.student.head,
            card(config, data, run, folder),
        ),
        config=config.model_dump(mode="json"),
    )
    if state is not None:
        run.restore(state)
        say(f"resumed at step {step}")
    try:
        train(run)
    finally:
        run.display.close()
    say(summary(folder, run))


def refuse_another_run(folder: RunFolder, config: PretrainConfig) -> None:
    """A folder belongs to one run: anything but the same configuration is a mistake."""
    different = differences(resolve(read_yaml(folder.config), {}), config)
    if different:
        raise UserError(
            f"{folder.path} holds another run ({'; '.join(different)}): "
            "choose another --out, or use the same settings to go on with it."
        )


def introduction(
    config: PretrainConfig, data: Data, plan: Plan, method: Method, device: torch.device
) -> list[str]:
    """What is about to happen, in a few lines."""
    lines = [
        f"{config.method} with {config.backbone} ({count(method.student.backbone) / 1e6:.1f} M "
        f"parameters) on {len(data.unlabelled):,} images of {config.image_size} px, "
        f"{config.epochs} epochs = {plan.steps:,} steps of {config.batch_size}, on {device.type}"
    ]
    if config.batch_size != config.optim.lr_batch_size:
        lines.append(
            f"The learning rate {config.optim.lr:g} is for a batch of "
            f"{config.optim.lr_batch_size}: scaled to {peak_rate(config):g}."
        )
    if device.type == "cpu" and config.backbone == "resnet50" and config.image_size >= 128:
        lines.append(
            "No GPU is used: a ResNet-50 of this size takes weeks on a CPU. "
            "`lewel recipes` lists small ones."
        )
    return lines


def draw_views(dataset: TwoViews, plan: Plan, folder: RunFolder) -> None:
    """A picture of what the network will see: eight images, one column each, a row a view."""
    keys = next(plan.order.keys(0, 1))[:8]
    views = finish_views(dataset.__getitems__(keys), CPU, (0.0,) * 3, (1.0,) * 3)
    save_image(torch.cat(views), folder.views, nrow=len(keys))


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
    }


def git_state() -> str | None:
    """The commit of the source tree that runs, where there is one."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def summary(folder: RunFolder, run: Training) -> str:
    """What was reached, what was written, and what to do next."""
    about = json.loads(folder.card.read_text(encoding="utf-8"))
    lines = []
    if about["knn"] is not None:
        lines.append(
            f"k-NN accuracy {about['knn_before']:.1%} before, {about['knn']:.1%} after "
            f"({about['steps']} steps)"
        )
    if run.bad_images.bad:
        lines.append(f"{len(run.bad_images.bad)} unreadable images: see {folder.bad_images}")
    lines += [
        f"wrote {folder.backbone} (weights), {folder.card.name}, {folder.views.name}, "
        f"{folder.metrics.name}",
        "next:",
        f"  lewel pretrain {about['data']} --recipe {folder.config} --out {folder.path} "
        f"--epochs {2 * run.plan.epochs}    # train on",
        f'  python -c "import lewel; print(lewel.load_backbone({str(folder.path)!r}))"',
    ]
    return "\n".join(lines)


def load_backbone(path: str | Path) -> ResNet:
    """The trained backbone of a run folder or backbone.safetensors, a plain torchvision module.

    It maps normalised images (B, 3, S, S) to pooled features (B, C) and is in eval mode.
    """
    path = Path(path)
    file = path / "backbone.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path} holds no backbone: expected a run folder or backbone.safetensors.")
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {}).get("lewel", "{}"))
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read as safetensors: {error}.") from None
    if "backbone" not in about:
        raise UserError(f"{file} was not written by lewel: it does not say which network it is.")
    net = build_backbone(about["backbone"], about["stem"], about["width"]).net
    net.load_state_dict(load_file(file))
    return net.eval()
