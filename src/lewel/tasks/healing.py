"""What is missing or damaged in a run folder, and what a checkpoint can restore."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from lewel.config.methods import without_unused
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import read_config
from lewel.errors import UserError
from lewel.files import set_aside
from lewel.interop.lookup import read_card
from lewel.nn.heads import Encoder
from lewel.train.metrics import MetricsReader
from lewel.train.run_folder import RunFolder

Faults = dict[Path, str]  # of files that are missing, damaged, or of other weights


def settings_before(folder: RunFolder) -> tuple[PretrainConfig | None, str | None]:
    """The settings of an earlier call, and what is wrong with config.yaml, if anything is."""
    if not folder.config.exists():
        return None, None
    try:
        return without_unused(read_config(folder.config)), None
    except UserError as error:
        return None, str(error)


def refuse_lost_checkpoints(folder: RunFolder, config_fault: str | None) -> None:
    """A run that has no checkpoint starts anew only where nothing trained would be replaced."""
    if config_fault is not None:
        raise UserError(config_fault)
    if not folder.backbone.exists():
        return
    try:
        steps = read_card(folder.backbone).get("steps")
    except UserError:
        steps = None
    if steps != 0:  # 0: killed before the first checkpoint
        raise UserError(
            f"{folder.path} holds a trained backbone and no checkpoint to resume from: choose "
            f"another --out, and start from its weights with --init {folder.path}."
        )


def heal(
    folder: RunFolder,
    student: Encoder,
    step: int,
    config_fault: str | None,
    *,
    describe: Callable[[], dict[str, Any]],
    draw: Callable[[], None],
    configure: Callable[[], None],
) -> str:
    """Write again what is missing or damaged in a finished run -> what was there and what not.

    The functions make a card, and write views.png and config.yaml.
    """
    faults = find_faults(folder, student, step)
    if config_fault is not None or not folder.config.exists():
        faults[folder.config] = "missing" if config_fault is None else "damaged"
    card = known_card(folder, faults, step) or describe()
    for path in (path for path, fault in faults.items() if fault != "missing"):
        set_aside(path)
    folder.export(student.backbone.net, student.head, card, only=faults)
    if folder.views in faults:
        draw()
    if folder.config in faults:
        configure()
    return in_words(folder, faults, step)


def find_faults(folder: RunFolder, student: Encoder, step: int) -> Faults:
    """The files that are not what a checkpoint of this student at this step would give."""
    found = {
        folder.backbone: weights_fault(folder.backbone, student.backbone.net),
        folder.heads: weights_fault(folder.heads, student.head),
        folder.card: "missing" if not folder.card.exists() else None,
        folder.views: picture_fault(folder.views),
    }
    if found[folder.card] is None and stored_card(folder.card, step) is None:
        found[folder.card] = "damaged"
    return {path: fault for path, fault in found.items() if fault is not None}


def weights_fault(path: Path, module: nn.Module) -> str | None:
    """What is wrong with a file of weights; None if it holds those of the module."""
    if not path.exists():
        return "missing"
    try:
        found = load_file(path)
        read_card(path)
    except (SafetensorError, OSError, UserError):
        return "damaged"
    expected = module.state_dict()
    same = found.keys() == expected.keys()
    same = same and all(torch.equal(found[name], expected[name].cpu()) for name in expected)
    return None if same else "of other weights"


def picture_fault(path: Path) -> str | None:
    """What is wrong with a picture; None if it can be read."""
    if not path.exists():
        return "missing"
    try:
        with Image.open(path) as picture:
            picture.load()
    except (OSError, ValueError, SyntaxError, EOFError):  # Pillow raises many types
        return "damaged"
    return None


def stored_card(path: Path, step: int) -> dict[str, Any] | None:
    """The card in card.json or in a file of weights, if it is of this step."""
    try:
        weights = path.suffix == ".safetensors"
        card = read_card(path) if weights else json.loads(path.read_text(encoding="utf-8"))
    except (UserError, ValueError, OSError):
        return None
    if not isinstance(card, dict) or not {"knn", "knn_before", "backbone"} <= card.keys():
        return None
    return card if card.get("steps") == step else None


def known_card(folder: RunFolder, faults: Faults, step: int) -> dict[str, Any] | None:
    """The card from the first file that still has it."""
    intact = (path for path in (folder.card, folder.backbone, folder.heads) if path not in faults)
    cards = (stored_card(path, step) for path in intact)
    return next((card for card in cards if card is not None), None)


def in_words(folder: RunFolder, faults: Faults, step: int) -> str:
    """What was there, and what was restored."""
    files = (folder.backbone, folder.heads, folder.card, folder.views, folder.config)
    there = [path.name for path in files if path not in faults]
    restored = [f"{path.name} ({faults[path]})" for path in files if path in faults]
    parts = [f"intact: {', '.join(there)}"] if there else []
    if restored:
        parts.append(f"restored from the checkpoint of step {step}: {', '.join(restored)}")
    if any(fault != "missing" for fault in faults.values()):
        parts.append("the old files are kept as *.damaged")
    lost = step + 1 - MetricsReader(folder.metrics).update().steps
    if lost > 0:
        parts.append(f"metrics.jsonl lacks {lost:,} lines, which no checkpoint has")
    return "; ".join(parts)
