"""What lewel does, from Python: the same names and settings as on the command line."""

from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from rich.console import Console
from torch import nn

from lewel.config.commands import EmbedConfig, ExportConfig, ImportConfig, MapsConfig, PackConfig
from lewel.config.evaluate import (
    CONFIGS,
    DetectConfig,
    EvaluateConfig,
    FinetuneConfig,
    KnnConfig,
    LinearConfig,
    SegmentConfig,
    WhereConfig,
)
from lewel.config.recipes import command_recipe, list_recipes
from lewel.config.settings import Settings, explain
from lewel.data.views.transform import Transform
from lewel.errors import UserError
from lewel.interop.backbones import Network, find_network, open_backbone, plain
from lewel.interop.lookup import read_card, weights_file
from lewel.progress import plain_console, rank_from_outside, show
from lewel.tasks import auto as auto_task
from lewel.tasks import detect as detect_task
from lewel.tasks import doctor as doctor_task
from lewel.tasks import embed as embed_task
from lewel.tasks import export as export_task
from lewel.tasks import finetune as finetune_task
from lewel.tasks import import_ as import_task
from lewel.tasks import knn as knn_task
from lewel.tasks import linear as linear_task
from lewel.tasks import maps as maps_task
from lewel.tasks import pack as pack_task
from lewel.tasks import pretrain as pretrain_task
from lewel.tasks import report as report_task
from lewel.tasks import segment as segment_task
from lewel.tasks import where as where_task
from lewel.tasks.outcome import (
    Accuracy,
    Detected,
    Embedded,
    Exported,
    Located,
    Mapped,
    Pretrained,
    Segmented,
)
from lewel.tasks.paper import numbers_of
from lewel.tasks.results import COLUMNS, result_rows

Name = str | PathLike[str]  # of a run, a file or a folder
Maybe = Name | None
Config = TypeVar("Config", bound=Settings)
Evaluation = TypeVar("Evaluation", bound=EvaluateConfig)
Found = TypeVar("Found")


def pretrain(
    data: Maybe = None,
    *,
    recipe: Maybe = None,
    budget: str | None = None,
    out: Maybe = None,
    rescan: bool = False,
    console: Console | None = None,
    **settings: Any,
) -> Pretrained:
    """Pre-train a backbone on unlabelled images, or resume where an earlier call stopped.

    `data` is a folder, a list file, a data set's name, `scenes`, or packed data by its folder or
    URL; `recipe` a shipped name, `paper` or a YAML file (without one, settings are chosen for the
    images, the machine and the `budget`, such as "30m"); every other setting is a keyword
    (`epochs=20, optim={"lr": 0.3}`). `rescan` reads a large folder again, although the times of its
    subfolders say that none has changed. The result can be used as the path of the run folder.
    """
    settings = {k: fspath(v) if isinstance(v, PathLike) else v for k, v in settings.items()}
    if rescan:
        pretrain_task.rescan(_name(data), _name(recipe), _path(out))
    console = console or plain_console()
    found = auto_task.settings(_name(data), _name(recipe), settings, _path(out), budget)
    auto_task.show_settings(found, console)
    done = pretrain_task.pretrain(found.config, _path(out), console)
    if done.warning is not None and rank_from_outside() == 0:
        show(console, done.warning)
    return done


def knn(backbone: Name, data: Name, *, out: Maybe = None, **settings: Any) -> Accuracy:
    """Accuracy by the nearest neighbours of each validation image in the training set."""
    return _evaluate(knn_task.knn, KnnConfig, backbone, data, None, out, settings)


def linear(
    backbone: Name, data: Name, *, recipe: Maybe = None, out: Maybe = None, **settings: Any
) -> Accuracy:
    """Accuracy of a linear classifier on frozen features; `fast=True` caches the features."""
    return _evaluate(linear_task.linear, LinearConfig, backbone, data, recipe, out, settings)


def finetune(
    backbone: Name, data: Name, *, recipe: Maybe = None, out: Maybe = None, **settings: Any
) -> Accuracy:
    """Accuracy after fine-tuning on a fraction of the labels (`labels="10%"`)."""
    return _evaluate(finetune_task.finetune, FinetuneConfig, backbone, data, recipe, out, settings)


def segment(
    backbone: Name, data: Name, *, recipe: Maybe = None, out: Maybe = None, **settings: Any
) -> Segmented:
    """mIoU of a dilated FCN on the backbone."""
    return _evaluate(segment_task.segment, SegmentConfig, backbone, data, recipe, out, settings)


def detect(
    backbone: Name, data: Name, *, recipe: Maybe = None, out: Maybe = None, **settings: Any
) -> Detected:
    """Average precision of Faster or Mask R-CNN on the backbone."""
    return _evaluate(detect_task.detect, DetectConfig, backbone, data, recipe, out, settings)


def embed(backbone: Name, data: Name, *, out: Maybe = None, **settings: Any) -> Embedded:
    """Features of every image, written to a .npz or .parquet file."""
    config = _checked(EmbedConfig, settings)
    return embed_task.embed(fspath(backbone), fspath(data), config, _path(out))


def maps(run: Name, images: Name | Sequence[Name], *, out: Maybe = None, **settings: Any) -> Mapped:
    """Alignment maps of a run as heat maps over image files, a folder or `scenes`."""
    given = [images] if isinstance(images, str | PathLike) else images
    names = [fspath(image) for image in given]
    return maps_task.maps(Path(run), names, _checked(MapsConfig, settings), _path(out))


def where(run: Name, data: Name, **settings: Any) -> Located:
    """Numbers of a run's alignment maps: consistency, pointing game, IoU, entropy."""
    config = _checked(WhereConfig, {**settings, "data": fspath(data)})
    return where_task.where(Path(run), config, plain_console())


def results(*runs: Name) -> list[dict[str, str]]:
    """All results of one or several runs, a row each, as `lewel results` prints them."""
    rows = [row.cells for run in runs for row in result_rows(Path(run), numbers_of(Path(run)))]
    return [dict(zip(COLUMNS, cells, strict=True)) for cells in rows]


def recipes(kind: Literal["pretrain", "eval"] = "pretrain") -> dict[str, str]:
    """The recipes that ship, by name, with what they are."""
    return list_recipes(kind)


def report(*runs: Name, out: Maybe = None, overwrite: bool = False) -> Path:
    """One self-contained HTML page about one or several runs; its path."""
    return report_task.report([Path(run) for run in runs], _path(out), overwrite=overwrite)


def export(backbone: Name, to: str, *, out: Maybe = None, **settings: Any) -> Exported:
    """A backbone in another project's format, loaded back and compared."""
    config = _checked(ExportConfig, {**settings, "to": to})
    return export_task.export(fspath(backbone), config, _path(out))


def import_(file: Name, *, out: Maybe = None, **settings: Any) -> import_task.Imported:
    """A third-party checkpoint as a folder that every function takes."""
    return import_task.import_(Path(file), _checked(ImportConfig, settings), _path(out))


def pack(source: Name, out: Name, **settings: Any) -> pack_task.PackedShards:
    """Images once into shards that are read fast."""
    return pack_task.pack(fspath(source), fspath(out), _checked(PackConfig, settings))


def doctor(*, deep: bool = False) -> doctor_task.Diagnosis:
    """Check this machine; `deep=True` also trains short runs on all devices and compares them."""
    return doctor_task.doctor(deep, lambda text: None)


def load_backbone(path: Name) -> nn.Module:
    """The trained backbone of a run folder or backbone.safetensors, a plain torchvision or timm
    module.

    It maps normalised images (B, 3, S, S) to pooled features (B, C) and is in eval mode. timm
    networks whose last norm sits in the head (such as ConvNeXt) pool before it, as timm has it.
    Its attribute `transform` prepares images: `net(net.transform("cat.jpg"))`.
    """
    network = _own_network(path)
    net = plain(open_backbone(fspath(path), network))
    net.transform = Transform(network.image_size, network.mean, network.std)  # type: ignore[assignment]
    return net


def transform(path: Name) -> Transform:
    """The preprocessing of a run folder or backbone.safetensors, as every evaluation has it.

    Called with a path, a PIL image, a tensor uint8 (3, H, W), or a list of them, it gives
    normalised images (B, 3, S, S): the shorter side is resized to round(8/7 S), bilinear with
    antialiasing, and the centre S x S is cropped.
    """
    network = _own_network(path)
    return Transform(network.image_size, network.mean, network.std)


def _own_network(path: Name) -> Network:
    file = weights_file(fspath(path))
    card = read_card(file) if file is not None and file.suffix == ".safetensors" else {}
    if file is None or "backbone" not in card:
        raise UserError(f"{path} was not written by lewel: expected a run or backbone.safetensors.")
    return find_network(fspath(path))


def _evaluate(
    task: Callable[[str, Evaluation, Path | None, Console], Found],
    model: type[Evaluation],
    backbone: Name,
    data: Name,
    recipe: Maybe,
    out: Maybe,
    settings: dict[str, Any],
) -> Found:
    """An evaluation with its settings from a recipe and keywords."""
    command = next(name for name, kind in CONFIGS.items() if kind is model)
    base = {} if recipe is None else command_recipe(command, fspath(recipe))
    settings = {k: fspath(v) if isinstance(v, PathLike) else v for k, v in settings.items()}
    config = _checked(model, {**base, **settings, "data": fspath(data)})
    return task(fspath(backbone), config, _path(out), plain_console())


def _checked(model: type[Config], settings: dict[str, Any]) -> Config:
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise UserError(explain(error, model)) from None


def _name(value: Maybe) -> str | None:
    return None if value is None else fspath(value)


def _path(value: Maybe) -> Path | None:
    if value == "":
        raise UserError("out is an empty name: write . for the current folder.")
    return None if value is None else Path(value)
