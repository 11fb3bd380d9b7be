"""What lewel does, from Python: `pretrain` a backbone, `load_backbone` it afterwards."""

from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from lewel.backbones import find_network, open_backbone, plain
from lewel.build import build_fabric, build_optimizer, peak_rate
from lewel.card import COUNTERPART, count
from lewel.config import PretrainConfig, resolve
from lewel.data.named import NAMES
from lewel.errors import UserError
from lewel.finding import read_card, weights_file
from lewel.nn.backbone import exports_of
from lewel.pretraining import (
    Parts,
    memory_explained,
    open_configured,
    pretrain_here,
    pretrain_in_process,
)
from lewel.recipes import default_recipe, read_recipe
from lewel.train.devices import placement
from lewel.train.estimate import estimate_memory, estimate_seconds
from lewel.train.launch import launch, lost_peers_explained
from lewel.train.run import optimizer_slots


def pretrain(
    data: str | None = None,
    *,
    recipe: str | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    **overrides: Any,
) -> Path:
    """Pre-train a backbone on images without labels, or go on where an earlier call stopped.

    `data` is a folder, a list file, a data set's name, `scenes`, or packed data by its folder or
    URL; `recipe` a shipped name or a YAML file; every other value of the configuration is a keyword
    (`epochs=20, optim={"lr": 0.3}`). `console` is where it speaks, unless it starts processes for
    many devices.
    Returns the run folder.
    """
    config = configure(data, recipe, overrides)
    place = placement(config.devices, config.nodes)
    fabric = build_fabric(config, place)
    starts_others = place.ranks > 1 and place.starter == "lewel"
    if not starts_others:
        fabric.launch()  # joins the processes that torchrun or srun has started
    opened = open_configured(config)
    path = Path(out) if out else Path("runs") / f"{opened.unlabelled.name}-{config.method}"
    if path.resolve().is_relative_to(config.data):
        raise UserError(
            f"The run folder {path} lies in the data {config.data}, and would become a part "
            "of it: choose another --out."
        )
    parts = Parts(config, opened, place, fabric, path)  # mistakes show before a write
    if starts_others:
        del parts
        launch(fabric, pretrain_in_process, config, place, path)
    else:
        with lost_peers_explained():
            pretrain_here(parts, path, console or Console())
    return path


def configure(data: str | None, recipe: str | None, overrides: dict[str, Any]) -> PretrainConfig:
    """The checked configuration of a run, its data path made absolute."""
    method = str(overrides.get("method", "lewel_b"))
    known = method in COUNTERPART  # another is refused below, with the names of these
    given = read_recipe(recipe) if recipe else default_recipe(method) if known else {}
    if data is not None:
        overrides = {**overrides, "data": str(data)}
    elif "data" not in given:
        raise UserError(
            "What are the images? Give a folder, a list file, a data set's name, or `scenes`."
        )
    config = resolve(given, overrides)
    path = Path(config.data).expanduser()
    if config.data != "scenes" and config.data not in NAMES and path.exists():
        config = config.model_copy(update={"data": str(path.resolve())})
    for key in ("classes", "init"):  # so that config.yaml holds wherever it is used
        if (value := getattr(config, key)) is not None:
            config = config.model_copy(update={key: str(Path(value).expanduser().resolve())})
    return config


@memory_explained()
def describe(config: PretrainConfig) -> dict[str, Any]:
    """What a run would be, without starting it: images, steps, parameters, memory, time."""
    place = placement(config.devices, config.nodes)
    fabric = build_fabric(config, place)
    parts = Parts(config, open_configured(config), place, fabric, None)
    method, plan, device = parts.method, parts.plan, parts.fabric.device
    micro = config.batch_size // place.ranks // config.accumulate
    slots = optimizer_slots(build_optimizer(method, config))
    memory = estimate_memory(method, slots, config.image_size, micro, plan.half)
    seconds = config.accumulate * estimate_seconds(
        method,
        config.image_size,
        plan.channels_last,
        device,
        micro,
        plan.half,
        at_most=16 if device.type == "cpu" else 64,
    )
    return {
        "images": len(parts.data.unlabelled),
        "steps": parts.plan.steps,
        "learning rate": peak_rate(config),
        "parameters of the backbone": count(method.student.backbone),
        "parameters trained": sum(p.numel() for p in method.parameters() if p.requires_grad),
        "positions of a map": method.student.backbone.positions(config.image_size),
        "exports": ", ".join(exports_of(config.backbone, config.stem, config.width)),
        "memory of a device": f"about {memory.total / 1e9:.1f} GB for {micro} images at a time",
        "time": f"about {duration(seconds * plan.steps)} on {place.ranks} x {device.type}, "
        f"{seconds:.2g} s a step, if reading images keeps up",
    }


def duration(seconds: float) -> str:
    """A length of time in the unit that fits it."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def load_backbone(path: str | Path) -> nn.Module:
    """The trained backbone of a run folder or backbone.safetensors, a plain torchvision or timm
    module.

    It maps normalised images (B, 3, S, S) to pooled features (B, C) and is in eval mode. timm
    networks whose last norm sits in the head (such as ConvNeXt) pool before it, as timm has it.
    """
    file = weights_file(path)
    card = read_card(file) if file is not None and file.suffix == ".safetensors" else {}
    if file is None or "backbone" not in card:
        raise UserError(f"{path} was not written by lewel: expected a run or backbone.safetensors.")
    return plain(open_backbone(path, find_network(path)))
