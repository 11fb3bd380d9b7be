"""What lewel does, from Python: `pretrain` a backbone, `load_backbone` it afterwards."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torchvision.models import ResNet

from lewel.build import build_backbone, peak_rate
from lewel.config import PretrainConfig, resolve
from lewel.data.sources import open_data
from lewel.errors import UserError
from lewel.pretraining import COUNTERPART, Parts, count, run_in
from lewel.recipes import default_recipe, read_recipe
from lewel.train.folder import RunFolder


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
    if folder.path.resolve().is_relative_to(config.data):
        raise UserError(
            f"The run folder {folder.path} lies in the data {config.data}, and would become a part "
            "of it: choose another --out."
        )
    folder.open()
    try:
        run_in(folder, parts, console)
    finally:
        folder.close()
    return folder.path


def configure(data: str | None, recipe: str | None, overrides: dict[str, Any]) -> PretrainConfig:
    """The checked configuration of a run, its data path made absolute."""
    method = str(overrides.get("method", "lewel_b"))
    known = method in COUNTERPART  # another is refused below, with the names of these
    given = read_recipe(recipe) if recipe else default_recipe(method) if known else {}
    if data is not None:
        overrides = {**overrides, "data": str(data)}
    elif "data" not in given:
        raise UserError("What are the images? Give a folder, a list file, or `scenes`.")
    config = resolve(given, overrides)
    path = Path(config.data).expanduser()
    if config.data != "scenes" and path.exists():
        config = config.model_copy(update={"data": str(path.resolve())})
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
        "positions of a map": (-(-config.image_size // method.student.backbone.stride)) ** 2,
    }


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
