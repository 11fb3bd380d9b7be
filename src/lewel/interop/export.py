"""Converts tensor names and writes configurations for detectron2 and mmsegmentation."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torchvision.models.resnet import BasicBlock

from lewel.nn.backbone import RESNETS

Tensors = dict[str, Tensor]

DETECTRON2_NAMES = [
    re.compile(rf"(^|\.){end}$") for end in (r"stem\.conv1\.weight", r"res2\.0\..*")
]


def to_detectron2(tensors: Tensors) -> Tensors:
    """A torchvision ResNet's tensors under detectron2's names."""
    return {
        _name_in_detectron2(name): value
        for name, value in tensors.items()
        if not name.endswith("num_batches_tracked")
    }


def _name_in_detectron2(name: str) -> str:
    if "layer" not in name:
        name = f"stem.{name}"
    name = re.sub(r"layer(\d)", lambda found: f"res{int(found[1]) + 1}", name)
    name = re.sub(r"bn(\d)", r"conv\1.norm", name)
    return name.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")


def from_detectron2(tensors: Tensors) -> Tensors:
    """detectron2's tensors of a ResNet under torchvision's names; other names are unchanged."""
    return {_name_in_torchvision(name): value for name, value in tensors.items()}


def _name_in_torchvision(name: str) -> str:
    # A C4 detector has the last stage in its RoI heads, not in the backbone.
    name = re.sub(r"^roi_heads\.res5\.(?=\d)", "backbone.res5.", name)
    stage = re.search(r"(^|\.)res([2-5])\.\d+\.", name)
    if stage:
        name = name.replace(f"res{stage[2]}.", f"layer{int(stage[2]) - 1}.", 1)
        name = name.replace("shortcut.norm.", "downsample.1.").replace("shortcut.", "downsample.0.")
    elif not re.search(r"(^|\.)stem\.conv1\.", name):
        return name
    else:
        name = re.sub(r"(^|\.)stem\.", r"\1", name, count=1)
    return re.sub(r"conv(\d)\.norm\.", r"bn\1.", name)


def is_detectron2(names: Sequence[str]) -> bool:
    """Whether tensors have detectron2's names of a ResNet."""
    return all(any(one.search(name) for name in names) for one in DETECTRON2_NAMES)


def detectron2_checkpoint(tensors: Tensors) -> dict[str, Any]:
    """A checkpoint for detectron2, which matches the backbone of a detector by its names."""
    return {"model": to_detectron2(tensors), "__author__": "lewel", "matching_heuristics": True}


def mmseg_checkpoint(tensors: Tensors) -> dict[str, Any]:
    """A checkpoint for mmseg, mmdet and mmpretrain: their ResNets have torchvision's names."""
    return {"state_dict": tensors}


def from_mmseg(tensors: Tensors) -> Tensors:
    """A backbone of mmseg, alone or inside a segmentor, under torchvision's names."""
    return {name.removeprefix("backbone."): value for name, value in tensors.items()}


def depth(name: str) -> int:
    """The depth of a ResNet: 101 for resnext101_32x8d."""
    found = re.search(r"resne(?:x?)t(\d+)", name)
    assert found is not None, name
    return int(found[1])


def detectron2_config(
    name: str, weights: Path, mean: Sequence[float], std: Sequence[float]
) -> dict[str, Any]:
    """detectron2's settings for a ResNet with RGB input and batch norm."""
    block, _, shape = RESNETS[name]
    resnets: dict[str, Any] = {"DEPTH": depth(name), "STRIDE_IN_1X1": False, "NORM": "SyncBN"}
    if block is BasicBlock:
        resnets["RES2_OUT_CHANNELS"] = 64
    if "groups" in shape:
        resnets["NUM_GROUPS"] = shape["groups"]
    if "width_per_group" in shape:
        resnets["WIDTH_PER_GROUP"] = shape["width_per_group"]
    return {
        "VERSION": 2,  # detectron2 guesses it, with a warning, where it is missing
        "MODEL": {
            "WEIGHTS": str(weights),
            "PIXEL_MEAN": _in_bytes(mean),
            "PIXEL_STD": _in_bytes(std),
            "BACKBONE": {"FREEZE_AT": 0},
            "RESNETS": resnets,
        },
        "INPUT": {"FORMAT": "RGB"},
    }


def mmseg_config(
    name: str, weights: Path, mean: Sequence[float], std: Sequence[float]
) -> dict[str, Any]:
    """mmseg's `model` for a ResNet with RGB input and trainable batch norm."""
    _, _, shape = RESNETS[name]
    kind: dict[str, Any] = {"type": "ResNet", "depth": depth(name)}
    if "groups" in shape:
        kind |= {"type": "ResNeXt", "groups": shape["groups"]}
        kind |= {"base_width": shape["width_per_group"]}
    return {
        "pretrained": None,
        "data_preprocessor": {"mean": _in_bytes(mean), "std": _in_bytes(std), "bgr_to_rgb": True},
        "backbone": {
            **kind,
            "style": "pytorch",
            "norm_eval": False,
            "frozen_stages": -1,
            "init_cfg": {"type": "Pretrained", "checkpoint": str(weights)},
        },
    }


def _in_bytes(values: Sequence[float]) -> list[float]:
    """Scale colours from [0, 1] to [0, 255]."""
    return [round(255 * value, 4) for value in values]
