"""ResNets that were cut out of torchvision's as nn.Sequential, whose tensors have numbers."""

import re

from torch import Tensor

STAGE = re.compile(r"(\d+)\.0\.conv1\.weight")
CHILD = re.compile(r"(\d+)\.(.+)")


def from_sequential(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `nn.Sequential(*list(resnet.children())[:-1])` under torchvision's names.

    Its children are conv1, bn1, relu, maxpool and the stages, perhaps without maxpool. Every prefix
    whose tensors are such a network is renamed; other names are unchanged.
    """
    names = dict.fromkeys(tensors, "")
    for name, first in tensors.items():
        prefix = name.removesuffix("0.weight")
        if prefix == name or first.ndim != 4 or (prefix and not prefix.endswith(".")):
            continue
        own = [other.removeprefix(prefix) for other in tensors if other.startswith(prefix)]
        names |= {prefix + old: prefix + new for old, new in _renamed(own).items()}
    return {names[name] or name: value for name, value in tensors.items()}


def _renamed(names: list[str]) -> dict[str, str]:
    """torchvision's name of each tensor of a sequential ResNet; empty for other networks."""
    stages = sorted({int(found[1]) for found in map(STAGE.fullmatch, names) if found})
    if len(stages) != 4 or "1.running_mean" not in names or stages[0] < 2:
        return {}
    parts = {0: "conv1", 1: "bn1"} | {stage: f"layer{n}" for n, stage in enumerate(stages, 1)}
    found = ((name, CHILD.fullmatch(name)) for name in names)
    return {
        name: f"{parts[int(match[1])]}.{match[2]}"
        for name, match in found
        if match is not None and int(match[1]) in parts
    }
