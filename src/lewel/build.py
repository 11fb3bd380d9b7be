"""From a configuration to objects: the only file that knows the names of things."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from lewel.config import PretrainConfig
from lewel.data.loader import Order, TwoViews
from lewel.data.sources import Data, Source
from lewel.data.views import ViewRecipe
from lewel.errors import UserError
from lewel.eval.features import extract_features
from lewel.eval.knn import knn_accuracy
from lewel.methods.base import Method
from lewel.methods.byol import BYOL
from lewel.methods.lewel_b import LewelB
from lewel.methods.lewel_m import LewelM
from lewel.methods.moco_v2 import MoCoV2
from lewel.nn.backbone import RESNETS, STRIDE, Backbone, build_resnet
from lewel.ops.randomness import generator, seed_of
from lewel.optim.groups import parameter_groups
from lewel.optim.lars import LARS
from lewel.optim.schedules import learning_rate
from lewel.train.loop import Plan, Probe

METHODS: dict[str, Callable[..., Method]] = {
    "lewel_b": LewelB,
    "byol": BYOL,
    "lewel_m": LewelM,
    "moco_v2": MoCoV2,
}
ALIGNED, CONTRASTIVE = ("lewel_b", "lewel_m"), ("lewel_m", "moco_v2")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def build_backbone(name: str, stem: str, width: int) -> Backbone:
    """A backbone by its name."""
    if name not in RESNETS:
        raise UserError(f"There is no backbone {name!r}: expected one of {', '.join(RESNETS)}.")
    net = build_resnet(name, stem=stem, width=width)  # type: ignore[arg-type]
    return Backbone(net, STRIDE[stem])  # type: ignore[index]


def build_method(config: PretrainConfig, images: int) -> Method:
    """The method with its networks, initialised by the seed alone."""
    torch.manual_seed(seed_of(config.seed))
    backbone = build_backbone(config.backbone, config.stem, config.width)
    check_sizes(config, backbone)
    head, teacher, contrast = config.head, config.teacher, config.contrast
    arguments: dict[str, Any] = {
        "dim": head.dim,
        "hidden": head.hidden,
        "statistics": teacher.statistics,
        "momentum": teacher.momentum,
        "momentum_schedule": teacher.schedule,
    }
    if config.method in CONTRASTIVE:
        arguments |= {
            "queue": contrast.queue or max(1, min(65_536, images // 4)),
            "temperature": contrast.temperature,
            "symmetric": contrast.symmetric,
            "norm_groups": contrast.norm_groups,
        }
    if config.method in ALIGNED:
        arguments |= {
            "aligned_dim": head.aligned_dim,
            "groups": head.groups,
            "aligned_weight": head.aligned_weight,
        }
    return METHODS[config.method](backbone, **arguments)


def check_sizes(config: PretrainConfig, backbone: Backbone) -> None:
    """Sizes that do not go together are a mistake of the user's, said before anything runs."""
    groups = config.head.groups
    if config.method in ALIGNED and config.head.aligned_weight > 0:
        for what, value, flag in (
            ("head.dim (d)", config.head.dim, "--head.dim"),
            (f"the channels of {config.backbone}", backbone.channels, "--width"),
        ):
            if value % groups:
                raise UserError(
                    f"{what} is {value}, not a multiple of head.groups (h) {groups}: "
                    f"change {flag} or --head.groups."
                )
    share = config.batch_size // config.accumulate
    if config.method in CONTRASTIVE and (
        share % config.contrast.norm_groups or share < 2 * config.contrast.norm_groups
    ):
        raise UserError(
            f"A micro-batch of {share} cannot be normalised in {config.contrast.norm_groups} "
            "groups of 2 or more: change --batch-size or --contrast.norm-groups."
        )
    if config.image_size < backbone.stride:
        raise UserError(
            f"image_size {config.image_size} is smaller than the stride {backbone.stride} of "
            f"{config.backbone} with its {config.stem} stem: use --stem small or tiny."
        )


def build_optimizer(method: nn.Module, config: PretrainConfig) -> Optimizer:
    """The optimiser, in the fused form where torch has one."""
    optim = config.optim
    groups = parameter_groups(method, optim.weight_decay, optim.exclude_bias_and_norm)
    if optim.name == "lars":
        return LARS(groups, lr=0.0, momentum=optim.momentum)
    for group in groups:
        del group["adapt"]
    fused = next(method.parameters()).device.type in ("cpu", "cuda")
    if optim.name == "sgd":
        return SGD(groups, lr=0.0, momentum=optim.momentum, fused=fused)
    return AdamW(groups, lr=0.0, fused=fused)


def peak_rate(config: PretrainConfig) -> float:
    """The learning rate, scaled linearly from the batch it was chosen for to this one."""
    return config.optim.lr * config.batch_size / config.optim.lr_batch_size


def build_plan(config: PretrainConfig, images: int, device: torch.device) -> Plan:
    """The course of the run: order of the data, schedule, intervals."""
    if config.batch_size > images:
        raise UserError(
            f"The batch size {config.batch_size} is larger than the data ({images} images): "
            f"use --batch-size {max(2, images // 2)} or less."
        )
    order = Order(images, config.batch_size, config.seed, config.accumulate)
    return Plan(
        order=order,
        epochs=config.epochs,
        learning_rate=partial(
            learning_rate,
            peak_rate(config),
            warmup=min(1.0, config.optim.warmup_epochs / config.epochs),
            schedule=config.optim.schedule,
        ),
        mean=MEAN,
        std=STD,
        channels_last=bool(config.channels_last),
        workers=default_workers(device) if config.workers is None else config.workers,
        log_every=config.log_every,
        checkpoint_minutes=config.checkpoint_minutes,
        probe_every=config.knn.every,
    )


def default_workers(device: torch.device) -> int:
    """Enough processes to feed a GPU; on a CPU most of the cores are left to the training."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(8, cores or 1) if device.type == "cuda" else max(1, (cores or 1) // 4)


def build_dataset(config: PretrainConfig, source: Source) -> TwoViews:
    """The source cut into two views."""
    views = config.views
    recipes = [
        ViewRecipe(
            crop_scale=views.crop_scale,
            flip=views.flip,
            jitter=views.jitter,
            jitter_probability=views.jitter_probability,
            grey=views.grey,
            blur=views.blur[view],
            blur_sigma=views.blur_sigma,
            solarise=views.solarise[view],
        )
        for view in range(2)
    ]
    return TwoViews(source, recipes, config.image_size, config.seed)


def build_fabric(config: PretrainConfig) -> Fabric:
    """The engine for this machine's device."""
    precision = "32-true" if config.precision == "32" else config.precision
    accelerator = config.accelerator
    if config.precision != "32" and (accelerator == "cpu" or not torch.accelerator.is_available()):
        check_cpu_precision(config.precision)
    try:
        fabric = Fabric(accelerator=accelerator, devices=1, precision=precision)
    except Exception as error:  # fabric raises many kinds for a device that is not there
        reason = str(error).splitlines()[0]
        raise UserError(f"--accelerator {config.accelerator} cannot be used: {reason}") from None
    return fabric


def check_cpu_precision(precision: str) -> None:
    """16 bits on a CPU: float16 has no autocast there, and bfloat16 kills some processors."""
    if precision == "16-mixed":
        raise UserError("--precision 16-mixed needs a GPU: use --precision 32 on this machine.")
    trial = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); (x @ x).sum().item()"
    if subprocess.run([sys.executable, "-c", trial], capture_output=True).returncode:
        raise UserError(
            "--precision bf16-mixed does not work on this processor: use --precision 32."
        )


def build_probe(
    config: PretrainConfig, data: Data, backbone: Backbone, device: torch.device, workers: int
) -> Probe | None:
    """k-NN accuracy, the bank from train and the queries from val; None without labels."""
    if data.train is None or data.val is None or not config.knn.every:
        return None
    if data.train.classes is None or len(data.train.classes) < 2:
        return None
    bank = choose(len(data.train), config.knn.bank)
    queries = choose(len(data.val), config.knn.queries)
    assert data.train.labels is not None
    assert data.val.labels is not None
    labels = torch.from_numpy(data.train.labels[bank])
    truth = torch.from_numpy(data.val.labels[queries])
    extract = partial(
        extract_features,
        backbone,
        size=config.image_size,
        mean=MEAN,
        std=STD,
        device=device,
        workers=workers,
    )
    train, val = data.train, data.val

    def probe(report: Callable[[str], None]) -> dict[str, float]:
        done = 0

        def advance(images: int) -> None:
            nonlocal done
            done += images
            report(f"k-NN: {done:,} of {len(bank) + len(queries):,} images")

        known, has_known = extract(train, bank, advance=advance)
        asked, has_asked = extract(val, queries, advance=advance)
        accuracy = knn_accuracy(
            known[has_known],
            labels[has_known],
            asked[has_asked],
            truth[has_asked],
            neighbours=config.knn.neighbours,
        )
        return {"knn": accuracy}

    return probe


def choose(total: int, most: int) -> np.ndarray:
    """At most so many of all indices, always the same ones."""
    return np.sort(generator(total, most).permutation(total)[:most])
