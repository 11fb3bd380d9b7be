"""What a pre-training run consists of before its folder is touched: data, plan, method."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lewel.config.build import build_method, build_plan, load_initial, peak_rate
from lewel.config.pretrain import PretrainConfig
from lewel.config.settings import storage_of
from lewel.data.pack.urls import shown
from lewel.data.sources.check import refuse_identical
from lewel.data.sources.file_list import Lists
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Data
from lewel.errors import RunError
from lewel.interop.published import Colours, colours_of
from lewel.train.card import count
from lewel.train.devices import Placement
from lewel.train.estimate import is_out_of_memory
from lewel.train.fabric import Fabric
from lewel.train.run_folder import RunFolder


def open_configured(config: PretrainConfig, path: Path | None) -> Data:
    """The data that a configuration names, for a run in a folder."""
    data = open_data(
        config.data,
        image_size=config.image_size,
        limit=config.limit,
        classes=config.classes,
        storage=storage_of(config),
        lists=Lists.beside(path),
    )
    refuse_identical(data.unlabelled, shown(config.data))
    return data


@contextmanager
def memory_explained() -> Iterator[None]:
    """A network that is too large to be made is a mistake in its sizes."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(
            "Memory ran out before the first step: choose a smaller --backbone, --width, "
            "--head.hidden or --contrast.queue."
        ) from None


class Parts:
    """What a configuration and its data give before a run folder is touched."""

    def __init__(
        self,
        config: PretrainConfig,
        data: Data,
        place: Placement,
        fabric: Fabric,
        path: Path | None,
    ) -> None:
        self.config, self.data, self.place, self.fabric = config, data, place, fabric
        with memory_explained():
            self.plan = build_plan(config, data.unlabelled, fabric.device, place)
            self.method = build_method(config, len(data.unlabelled), place.ranks)
        resumes = path is not None and any(RunFolder(path).checkpoints.glob("step-*.pt"))
        if config.init is not None and not resumes:
            load_initial(self.method, config.init)


def introduction(parts: Parts) -> list[str]:
    """What is about to happen, in a few lines."""
    config, data, plan = parts.config, parts.data, parts.plan
    method, device = parts.method, parts.fabric.device
    many = parts.place.ranks
    where = f"{many} x {device.type}" if many > 1 else device.type
    lines = [
        f"{config.method} with {config.backbone} ({count(method.student.backbone) / 1e6:.1f} M "
        f"parameters) on {len(data.unlabelled):,} images of {config.image_size} px, "
        f"epochs: {config.epochs} = {plan.steps:,} steps of {config.batch_size}, on {where}"
    ]
    if config.batch_size != config.optim.lr_batch_size:
        lines.append(
            f"The learning rate {config.optim.lr:g} is for a batch of "
            f"{config.optim.lr_batch_size}: scaled to {peak_rate(config):g}."
        )
    return [*lines, *warnings(parts)]


def warnings(parts: Parts) -> list[str]:
    """What a user may not expect of these settings, one sentence each."""
    config, device, lines = parts.config, parts.fabric.device, list[str]()
    if config.optim.warmup_epochs >= config.epochs:
        lines.append(
            f"The warm-up of {config.optim.warmup_epochs:g} epochs takes the whole run: "
            "the learning rate only rises. Lower --optim.warmup-epochs."
        )
    if device.type == "cpu" and config.backbone == "resnet50" and config.image_size >= 128:
        lines.append(
            "No GPU is used, and a ResNet-50 of this size is slow on a CPU (ImageNet takes weeks): "
            "choose a smaller --backbone or --image-size; --dry-run states the time."
        )
    if config.init is not None and (own := colours_of(config.init)) != Colours():
        lines.append(
            f"{config.init} was trained on images normalised by {own}; here ImageNet's mean and "
            "std are used, to which training adapts it."
        )
    in_batch = parts.method.about.in_batch or config.contrast.negatives == "batch"
    if in_batch and config.accumulate > 1:
        lines.append(
            f"The loss of {config.method} compares the images of a micro-batch: with --accumulate "
            f"{config.accumulate} these are {config.batch_size // config.accumulate:,}, not "
            f"{config.batch_size:,}."
        )
    return lines + parts.method.remarks(config.epochs, parts.plan.steps)
