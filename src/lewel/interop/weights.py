"""Reads weights of our runs and of third-party checkpoints, without executing code."""

import re
import warnings
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.serialization import safe_globals

from lewel.errors import UserError, load_reason, state_of
from lewel.files import user_path
from lewel.interop.export import from_detectron2, is_detectron2
from lewel.interop.sequential import from_sequential

VISSL = ("classy_state_dict", "base_model", "trunk")
CONTAINERS = ("state_dict", "model", "model_state_dict", "network", "module", "method", *VISSL)
CODE = re.compile(r"GLOBAL ([\w.]+)")  # a global that torch refuses to load
TEACHER = re.compile(r"encoder_k|momentum|teacher|target|(^|[._])ema([._]|$)")
SHOWN = 3  # names in a message


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a run folder, a safetensors file or a torch checkpoint, by their names."""
    file = user_path(path)
    if file.is_dir():
        file = file / "backbone.safetensors"
    if not file.is_file():
        state = "holds no weights" if user_path(path).is_dir() else state_of(file)
        raise UserError(
            f"{path} {state}: expected a run folder, .safetensors or .pth, or published weights by "
            "name, as timm/resnet50 or torchvision/resnet50."
        )
    if file.suffix == ".safetensors":
        try:
            return in_torchvisions_names(load_file(file))
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} cannot be read as safetensors: {error}.") from None
    if file.suffix == ".pkl" and not is_zipfile(file):
        raise UserError(
            f"{file} is a pickle, which could run code: not loaded. If you trust it, save its "
            "arrays as tensors in a .pth file ({'model': ...} in detectron2)."
        )
    try:
        content = _load(file)
    except Exception as error:  # torch raises many types for invalid files
        if code := CODE.search(str(error)):
            raise UserError(
                f"{file} holds more than tensors ({code[1]}) and could run code: not loaded. Save "
                "only its state_dict, or as safetensors."
            ) from None
        raise UserError(f"{file} cannot be read as a checkpoint: {load_reason(error)}.") from None
    tensors = _tensors_in(content)
    if not tensors:
        raise UserError(f"{file} holds no tensors by name: expected a state_dict.")
    return in_torchvisions_names(tensors)


def in_torchvisions_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of ResNets of other projects, renamed; others keep their names."""
    if is_detectron2(list(tensors)):
        return from_detectron2(tensors)
    return from_sequential(tensors)


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a checkpoint of lewel; empty for other files."""
    try:
        content = _load(path, mmap=True)
    except Exception:  # `read_weights` reports the error
        return {}
    ours = isinstance(content, dict) and {"config", "method", "step"} <= content.keys()
    config: dict[str, Any] = content["config"] if ours else {}
    return config


def _load(file: Path, *, mmap: bool = False) -> Any:
    """The content of a torch checkpoint, without torch's warnings on files of other kinds.

    The arguments of a script (`argparse.Namespace`), which many checkpoints hold, run no code.
    """
    with warnings.catch_warnings(), safe_globals([Namespace]):
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)


def _tensors_in(content: Any) -> dict[str, Tensor]:
    """The state_dict of a checkpoint, under any of the usual keys."""
    if not isinstance(content, dict):
        return {}
    for name in CONTAINERS:
        if isinstance(content.get(name), dict):
            return _tensors_in(content[name])
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def load_weights(net: nn.Module, path: str | Path) -> None:
    """Load the weights of a file into a network; all tensors must be there."""
    fill(net, read_weights(path), str(path))


def fill(net: nn.Module, tensors: dict[str, Tensor], what: str, partial: bool = False) -> list[str]:
    """Load tensors into a network, whatever their prefix.

    Prefixes such as `online_net.backbone.`, `module.encoder_q.` or `backbone.` are recognised by
    the names that follow; classifiers, projectors and other networks of the file are ignored. With
    `partial` tensors that do not fit keep their values. Returns the names of these tensors.
    """
    wanted = net.state_dict()
    here = network_in(tensors, next(iter(wanted)), wanted)
    found = {name: here[name] for name in wanted if name in here}
    missing = [name for name in wanted if name not in found and "num_batches" not in name]
    misfit = [name for name, value in found.items() if value.shape != wanted[name].shape]
    if partial and len(misfit) < len(found):
        found = {name: value for name, value in found.items() if name not in misfit}
    elif missing:
        raise UserError(
            f"{what} lacks {len(missing)} of the network's {len(wanted)} tensors "
            f"({first_few(missing)}; it has {first_few(list(tensors))}): is it the same network?"
        )
    elif misfit:
        name = misfit[0]
        raise UserError(
            f"{what} has {len(misfit)} tensors of another shape ({name} is "
            f"{tuple(found[name].shape)}, expected {tuple(wanted[name].shape)}): use the same "
            "--backbone, --width, --stem and --image-size."
        )
    refuse_no_numbers(found, wanted, what)
    net.load_state_dict(found, strict=False)
    return [name for name in wanted if name not in found and "num_batches" not in name]


def refuse_no_numbers(found: dict[str, Tensor], wanted: dict[str, Tensor], what: str) -> None:
    """Raise UserError for weights that are integers, or that are not finite."""
    floats = {name: value for name, value in found.items() if wanted[name].is_floating_point()}
    for name, value in floats.items():
        if value.layout != torch.strided or value.is_meta:
            raise UserError(
                f"{what} holds {name} without plain values (sparse, or meta): save it as a dense "
                "tensor."
            )
        if not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(
                f"{what} holds {name} as {kind}, expected floating-point numbers: give the weights "
                "before they were quantised or converted."
            )
    damaged = [n for n, v in floats.items() if not v.to(wanted[n].dtype).isfinite().all()]
    if damaged:
        raise UserError(
            f"{what} holds {len(damaged)} tensors with NaN or infinite values "
            f"({first_few(damaged)}): its training diverged or the file is damaged; give other "
            "weights."
        )


def network_in(
    tensors: dict[str, Tensor], first: str, wanted: Iterable[str] = ()
) -> dict[str, Tensor]:
    """The tensors of the network whose first tensor is `first`, without their prefix.

    Of several networks the one with most of the wanted names is used, then a student before its
    teacher, then the one with most tensors.
    """
    prefixes = [name.removesuffix(first) for name in tensors if name.endswith(first)]
    found = {
        prefix: {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        for prefix in prefixes
    }
    names = set(wanted)

    def rank(prefix: str) -> tuple[int, bool, int]:
        network = found[prefix]
        return len(names & network.keys()), TEACHER.search(prefix) is None, len(network)

    return found[max(found, key=rank)] if found else {}


def first_few(names: list[str]) -> str:
    """The first of many names, for a message."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
