"""Weights from anywhere: our own runs and others' checkpoints, read without running code."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lewel.errors import UserError

CONTAINERS = ("state_dict", "model", "model_state_dict", "network", "module", "method")
SHOWN = 3  # names in a sentence


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a run folder, a safetensors file or a torch checkpoint, by their names."""
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "backbone.safetensors"
    if not file.is_file():
        raise UserError(f"{path} holds no weights: expected a run folder, .safetensors or .pth.")
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} cannot be read as safetensors: {error}.") from None
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise UserError(
            f"{file} holds more than tensors and could run code: not loaded "
            f"({str(error).splitlines()[0]}). Save its state_dict alone, or as safetensors."
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{file} cannot be read as a checkpoint: {reason}.") from None
    tensors = _tensors_in(content)
    if not tensors:
        raise UserError(f"{file} holds no tensors by name: expected a state_dict.")
    return tensors


def _tensors_in(content: Any) -> dict[str, Tensor]:
    """The state_dict of a checkpoint, wherever its project puts it."""
    if not isinstance(content, dict):
        return {}
    for name in CONTAINERS:
        if isinstance(content.get(name), dict):
            return _tensors_in(content[name])
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def load_weights(net: nn.Module, path: str | Path) -> None:
    """Fill a network with weights that fit all of its tensors, under whatever prefix they stand.

    `online_net.backbone.`, `module.encoder_q.`, `backbone.` and so on are found by what follows
    them; a classifier, projectors and other networks of the file are left aside.
    """
    tensors, wanted = read_weights(path), net.state_dict()
    prefix = _best_prefix(tensors, wanted)
    found = {name: tensors[prefix + name] for name in wanted if prefix + name in tensors}
    missing = [name for name in wanted if name not in found and "num_batches" not in name]
    misfit = [name for name, value in found.items() if value.shape != wanted[name].shape]
    if missing:
        raise UserError(
            f"{path} lacks {len(missing)} of the network's {len(wanted)} tensors "
            f"({_some(missing)}; it has {_some(list(tensors))}): is --backbone the same network?"
        )
    if misfit:
        name = misfit[0]
        raise UserError(
            f"{path} has {len(misfit)} tensors of another shape ({name} is "
            f"{tuple(found[name].shape)}, expected {tuple(wanted[name].shape)}): use the same "
            "--backbone, --width, --stem and --image-size."
        )
    net.load_state_dict(found, strict=False)


def _best_prefix(tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> str:
    """What stands before the network's names in a file: the prefix that most of them have.

    Of equals the first in the file wins, which is the online network of teacher-student pairs.
    """
    first = next(iter(wanted))
    prefixes = [name.removesuffix(first) for name in tensors if name.endswith(first)]
    counts = {prefix: sum(prefix + name in tensors for name in wanted) for prefix in prefixes}
    return max(counts, key=lambda prefix: counts[prefix], default="")


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
