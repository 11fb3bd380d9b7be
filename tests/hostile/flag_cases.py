"""Every flag of every command with values of a wrong type and out of its range."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lewel.config import commands, evaluate
from lewel.config.pretrain import PretrainConfig
from tests.hostile.case import Case, Right, case
from tests.hostile.world import DETECTED, EVALUATED, LEWEL, SEGMENTED, TRAINED

# The command line that a wrong value is added to, and the settings whose flags it has.
COMMANDS: dict[str, type[BaseModel]] = {
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1": PretrainConfig,
    f"knn {{run}} --data {{photos}} --out new {EVALUATED}": evaluate.KnnConfig,
    f"linear {{run}} --data {{photos}} --out new {TRAINED}": evaluate.LinearConfig,
    f"finetune {{run}} --data {{photos}} --out new --labels 50% {TRAINED}": evaluate.FinetuneConfig,
    f"segment {{run}} --data {{masks}} --out new {SEGMENTED}": evaluate.SegmentConfig,
    f"detect {{run}} --data {{coco}} --out new {DETECTED}": evaluate.DetectConfig,
    "where {run} --data {plain} --accelerator cpu": evaluate.WhereConfig,
    "maps {run} {plain} --out new": commands.MapsConfig,
    f"embed {{run}} {{plain}} --out new.npz {EVALUATED}": commands.EmbedConfig,
    "export {run} --to torch-export --out new.pt2": commands.ExportConfig,
    "import {foreign.pth} --out new": commands.ImportConfig,
    "pack {plain} new --workers 0": commands.PackConfig,
}
# Settings of several numbers, by their keys.
SEVERAL = {
    "crop_scale": ("2 3", "0.5 0.2", "0 1", "-1 1", "nan 1", "0.5"),
    "views.crop_scale": ("2 3", "0.5 0.2", "0 1", "-1 1", "nan 1", "0.5"),
    "views.blur_sigma": ("2 1", "0 0", "-1 1", "nan nan"),
    "views.blur": ("2 0", "-1 0", "nan 0"),
    "views.solarise": ("0 2", "0 -1"),
    "views.jitter": ("0.4 0.4 0.2 0.9", "-1 0 0 0", "nan 0 0 0", "0.4 0.4"),
    "neighbours": ("0", "-1", "1.5", "abc", "5 0"),
    "decays": ("0", "1", "1.5", "-0.5", "nan"),
    "short_sides": ("0", "-1", "1.5", "1", "32 0"),
    "proposals": ("0 0 0 0", "-1 8 20 8", "20 8 20"),
    "lr": ("0", "-1", "nan", "inf", "abc", "0.1,0", "0.1,0.1", ","),
    "labels": ("0%", "101%", "-1%", "nan%", "%", "abc"),
}
# Commands whose flags are no model.
OTHERS = (
    "watch {run} --port 70000",
    "watch {run} --port -1",
    "watch {run} --port abc",
    "watch {run} --every 0",
    "watch {run} --every -5",
    "watch {run} --every nan",
    "watch nothing.txt --port -1",
    "reproduce table1 --list --seeds 0",
    "reproduce table1 --list --seeds -1",
    "reproduce table1 --list --seeds 1.5",
    "reproduce table1 --list --jobs 0",
    "reproduce table1 --list --scale huge",
    "reproduce table99 --list",
    "reproduce --only nothing-has-this-name --list",
    "reproduce --list --unknown",
    "bench nothing",
    "bench step --rounds 0",
    "bench step --threads 0",
    "bench step --width -1",
    "bench step --image-size 0",
    "bench step --batch-size abc",
    "bench step --optimizer adam",
    "bench step --only nothing",
    "bench step --backbone nothing",
    "bench data {plain} --images 0",
    "bench data {plain} --image-size 0",
    "bench data nowhere",
    "bench scale nothing",
    "bench scale image_size --groups 3",
    "recipes too many words",
    "results",
    "report",
    "maps",
    "knn",
    "knn {run}",
    "pack {plain}",
    "pack --check {pack} new",
    "nothing",
    "pretrain {plain} --nothing 3",
    "pretrain {plain} {photos}",
    "export {run}",
    "export {run} --to nothing",
    "export {run} --to onnx --opset 1",
    "export {run} --to onnx --opset 999",
    "export {run} --to hub",
    "export {run} --to hub --out {plain}/000.jpg",
    "doctor nothing",
    "doctor --deep 3",
    "doctor --nothing",
    "pretrain {plain} --out new",
    "pretrain {plain} --out new --budget 10m",
    "pretrain {photos} --out new --budget 0",
    "pretrain {photos} --out new --budget -5m",
    "pretrain {photos} --out new --budget nan",
    "pretrain {photos} --out new --budget 10",
    "pretrain {photos} --out new --budget 9999999d",
    "pretrain {photos} --out new --budget 1m --recipe paper",
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1 --init resnet999",
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1 --init timm/nothing",
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1 --init resnet50",
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1 --rank-timeout inf",
    f"knn {{run}} --data {{photos}} --out new {EVALUATED} --save-predictions",
)
# Too large for any machine, or for the type that takes it.
HUGE = {"seed": "9" * 40, "image_size": "1000000"}


def cases() -> list[Case]:
    found = [case("refused", line, "flags that are no settings' model") for line in OTHERS]
    for line, model in COMMANDS.items():
        for key, value in wrong_values(model):
            flag = "--" + key.replace("_", "-")
            words = _without(line.split(), flag)
            if key.startswith("contrast."):  # a setting of another method
                words = _without(_without(words, "--head.groups"), "--method")
                words += ["--method", "moco_v2"]
            right: Right = "refused"
            if value == HUGE.get(key):
                # A seed may be hashed, dense tasks have sizes of their own, others need memory.
                dense = words[0] in ("segment", "detect")
                right = "clear" if key == "seed" or dense else "stops"
            found.append(case(right, [*words, flag, *value.split()], f"{key} of {value}"))
    return found


def wrong_values(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each dotted key of a model with wrong values for it."""
    for name, field in model.model_fields.items():
        key, kind = prefix + name, field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from wrong_values(kind, f"{key}.")
        elif (key in SEVERAL and kind in (str, list[int])) or _is_tuple(kind):
            yield from ((key, value) for value in SEVERAL.get(key, ()))
        else:
            yield from ((key, value) for value in _of_one(field))
            if key in HUGE:
                yield key, HUGE[key]


def _of_one(field: FieldInfo) -> list[str]:
    """Wrong values of a setting of one number or of one of several words."""
    kinds = [kind for kind in _kinds(field.annotation) if kind is not type(None)]
    if any(get_origin(kind) is Literal for kind in kinds) and float not in kinds:
        return ["nothing", ""]
    if (int not in kinds and float not in kinds) or str in kinds:
        return []
    values = ["1.5"] if int in kinds else ["nan"]
    for bound in field.metadata:
        if isinstance(bound, Ge):
            values.append(str(bound.ge - 1))  # type: ignore[operator]
        elif isinstance(bound, Gt):
            values += [str(bound.gt), "inf"]
        elif isinstance(bound, Le):
            values.append(str(bound.le + 1))  # type: ignore[operator]
    return values


def _kinds(kind: Any) -> list[Any]:
    """The alternatives of a type, without their annotations."""
    if hasattr(kind, "__metadata__"):
        return _kinds(kind.__origin__)
    if get_origin(kind) is Literal or not get_args(kind):
        return [kind]
    return [one for part in get_args(kind) for one in _kinds(part)]


def _is_tuple(kind: Any) -> bool:
    return tuple in [get_origin(part) for part in (kind, *get_args(kind))]


def _without(words: list[str], flag: str) -> list[str]:
    """A command line without a flag and its values."""
    if flag not in words:
        return words
    place = words.index(flag)
    end = place + 1
    while end < len(words) and not words[end].startswith("--"):
        end += 1
    return words[:place] + words[end:]
