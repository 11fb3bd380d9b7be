"""From a configuration to objects: the only file that knows the names of things."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lewel.config.methods import arguments
from lewel.config.pretrain import PretrainConfig
from lewel.config.sizes import check_batch, check_sizes, crop_sizes, own_groups, small_size
from lewel.data.sources.source import Data, Source, blocks_of, is_remote
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import Order, TwoViews
from lewel.evaluate.features import AsTokens, Extractor
from lewel.evaluate.knn_probe import KnnProbe
from lewel.interop.backbones import build_backbone
from lewel.interop.published import fetch, find_published
from lewel.interop.weights import load_weights
from lewel.methods.base import Method
from lewel.methods.registry import find_method
from lewel.nn.backbone import MEAN, STD, Backbone
from lewel.nn.trainable import Trainable
from lewel.ops.randomness import seed_of
from lewel.ops.ranks import rank
from lewel.ops.ranks import ranks as started
from lewel.optim.groups import parameter_groups
from lewel.optim.lars import LARS
from lewel.optim.schedules import learning_rate
from lewel.optim.sgd import make_sgd
from lewel.train.devices import HALF, Placement, default_workers, open_fabric
from lewel.train.fabric import Fabric
from lewel.train.run import Embed, Plan, Probe


def build_method(config: PretrainConfig, images: int, ranks: int = 1) -> Method:
    """The method with its networks, initialised by the seed alone.

    Where only this one of several processes is started, to estimate, it has its part of the groups.
    """
    torch.manual_seed(seed_of(config.seed))
    backbone = build_backbone(
        config.backbone,
        config.stem,
        config.width,
        config.image_size,
        several_sizes=len(set(crop_sizes(config))) > 1,
    )
    check_sizes(config, backbone, ranks)
    mine = own_groups(config, min(ranks, started()), ranks)
    return find_method(config.method)(backbone, **arguments(mine, images))


def load_initial(method: Method, weights: str) -> None:
    """Give student and teacher the backbone of a file, or published weights."""
    file = fetch(weights) if find_published(weights) else weights
    load_weights(method.student.backbone.net, file)
    teacher = getattr(method, "teacher", None)
    if teacher is not None:
        teacher.network.backbone.load_state_dict(method.student.backbone.state_dict())


def build_optimizer(method: nn.Module, config: PretrainConfig) -> Optimizer:
    """The optimiser, in the fused form where torch has one."""
    optim = config.optim
    declared = method.groups() if isinstance(method, Trainable) else []
    groups = parameter_groups(method, optim.weight_decay, optim.exclude_bias_and_norm, declared)
    if optim.name == "lars":
        return LARS(groups, lr=0.0, momentum=optim.momentum)
    for group in groups:
        del group["adapt"]
    fused = next(method.parameters()).device.type in ("cpu", "cuda")
    if optim.name == "sgd":
        scaled = config.precision == "16-mixed"
        return make_sgd(groups, momentum=optim.momentum, fused=fused, scaled=scaled)
    return AdamW(groups, lr=0.0, fused=fused)


def peak_rate(config: PretrainConfig) -> float:
    """The learning rate, scaled linearly from the batch it was chosen for to this one."""
    return config.optim.lr * config.batch_size / config.optim.lr_batch_size


def build_plan(
    config: PretrainConfig, source: Source, device: torch.device, place: Placement
) -> Plan:
    """The course of the run: order of the data, schedule, intervals."""
    images = len(source)
    check_batch(config, source.name, images, place.ranks)
    order = Order(
        images,
        config.batch_size,
        config.seed,
        config.accumulate,
        rank(),
        place.ranks,
        blocks_of(source),
    )
    rate = partial(
        learning_rate,
        peak_rate(config),
        warmup=min(1.0, config.optim.warmup_epochs / config.epochs),
        start=config.optim.warmup_start,
    )
    return Plan(
        order=order,
        steps=config.epochs * order.steps_per_epoch,
        learning_rate=partial(rate, schedule=config.optim.schedule, end=config.optim.end),
        held_rate=partial(rate, schedule="constant"),
        mean=MEAN,
        std=STD,
        channels_last=bool(config.channels_last),
        half=config.precision in HALF,
        devices=place.devices,
        workers=default_workers(device, place.cores) if config.workers is None else config.workers,
        log_every=config.log_every,
        checkpoint_minutes=config.checkpoint_minutes,
        probe_every=config.knn.every,
        remote=is_remote(source),
    )


def build_dataset(config: PretrainConfig, source: Source) -> TwoViews:
    """The source cut into the views that the method takes."""
    views, about, recipes = config.views, find_method(config.method).about, two_recipes(config)
    small = [
        replace(recipes[number % 2], crop_scale=views.small_scale, size=small_size(config))
        for number in range(views.small_crops if about.small_crops else 0)
    ]
    return TwoViews(source, recipes[: about.views] + small, config.image_size, config.seed)


def build_two_views(config: PretrainConfig, source: Source) -> TwoViews:
    """The source cut into two large views, whatever the method takes."""
    return TwoViews(source, two_recipes(config), config.image_size, config.seed)


def two_recipes(config: PretrainConfig) -> list[ViewRecipe]:
    """How the two large views are drawn."""
    views = config.views
    return [
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


def build_embed(
    config: PretrainConfig, source: Source, method: Method, device: torch.device, place: Placement
) -> Embed:
    """Embeddings of all images for a method's `before_epoch`."""
    workers = default_workers(device, place.cores) if config.workers is None else config.workers

    def embed(
        network: Callable[[Tensor], Tensor], progress: Callable[[str, int, int], None]
    ) -> Tensor:
        done, every = 0, np.arange(len(source))

        def advance(images: int) -> None:
            nonlocal done
            done += images * place.ranks
            progress("embedding all images", min(done, len(source)), len(source))

        tokens = AsTokens(method, network)
        extractor = Extractor(tokens, config.image_size, MEAN, STD, device, workers=workers)
        return extractor.features_everywhere(source, every, advance)

    return embed


def build_fabric(config: PretrainConfig, place: Placement) -> Fabric:
    """The engine for these devices."""
    sync = config.sync_batch_norm
    return open_fabric(place, config.accelerator, config.precision, sync, config.rank_timeout)


def build_probe(
    config: PretrainConfig, data: Data, backbone: Backbone, device: torch.device, place: Placement
) -> Probe | None:
    """k-NN accuracy, the bank from train and the queries from val; None without labels."""
    if data.train is None or data.val is None or not config.knn.every:
        return None
    if data.train.classes is None or len(data.train.classes) < 2:
        return None
    # Training rests meanwhile: all cores may read, but where no process but this one is wanted.
    all_cores = min(8, place.cores)
    workers = 0 if config.workers == 0 else max(all_cores, config.workers or 0)
    return KnnProbe(
        Extractor(backbone, config.image_size, MEAN, STD, device, workers=workers),
        data.train,
        data.val,
        bank=config.knn.bank,
        queries=config.knn.queries,
        neighbours=config.knn.neighbours,
    )
