"""The facts by which settings are chosen without a recipe: images, machine, first weights."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from lewel.config.auto_choices import Facts
from lewel.config.build import build_dataset, build_method
from lewel.config.pretrain import PretrainConfig
from lewel.config.sizes import crop_sizes
from lewel.data.sources.images import CORRUPT_LIMIT, UnreadableImage
from lewel.data.sources.source import Data, Source, is_remote
from lewel.errors import UserError
from lewel.host import host_memory
from lewel.interop.backbones import build_backbone, find_network
from lewel.interop.lookup import read_card, weights_file
from lewel.interop.published import find_published
from lewel.interop.weights import read_config, read_weights
from lewel.nn.backbone import STOCK, Backbone
from lewel.tasks.speed import reading_seconds, seconds_together, threads_of_rank
from lewel.train.devices import default_workers, placement
from lewel.train.estimate import estimate_seconds

SAMPLE = 64  # images whose size is looked at
TIMED = 256  # images of the step that is timed, at most
TRIAL = 4.0  # seconds of steps at most: three steps alone differ by a fifth (measured)
SMALL = 64  # pixels; images that are chosen for weights have no fewer


class Looked(NamedTuple):
    """What some of the images showed."""

    side: int  # median of the shorter sides in pixels
    notes: list[str]


def gather(opened: Data, given: dict[str, Any], budget: float | None) -> tuple[Facts, list[str]]:
    """The facts about images and machine, and notes on what a user may not expect."""
    place = placement(given.get("devices"), given.get("nodes"))
    if budget is not None and place.starter != "lewel":
        raise UserError(
            f"--budget measures the speed of one process, not of {place.ranks} that "
            f"{place.starter} has started: give --epochs (--dry-run states the time)."
        )
    accelerator = given.get("accelerator", "auto")
    found = torch.accelerator.current_accelerator() if accelerator != "cpu" else None
    kind = found.type if found is not None and torch.accelerator.is_available() else "cpu"
    if kind == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
    else:
        memory = host_memory()[0] // place.devices  # shared by all processes
    looked = look(opened.unlabelled)
    there = torch.cuda.device_count() if kind == "cuda" else 1
    if place.starter == "lewel" and place.devices < there:
        looked.notes.append(f"{place.devices} of {there} GPUs: --devices {there} uses all.")
    init = network_of(given)
    backbone = str(given.get("backbone") or (init or {}).get("backbone", ""))
    mine, workers = place.cores, given.get("workers")
    facts = Facts(
        images=len(opened.unlabelled),
        side=looked.side,
        labelled=opened.train is not None,
        device="cuda" if kind == "cuda" else "mps" if kind == "mps" else "cpu",
        memory=memory,
        cores=mine,
        ranks=place.ranks,
        bf16=kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False),
        budget=budget,
        init=init,
        batch_norm=architecture_of(backbone).batch_norm,
        workers=default_workers(torch.device(kind), mine) if workers is None else workers,
    )
    return facts, looked.notes


def network_of(given: dict[str, Any]) -> dict[str, str | int] | None:
    """The network of the weights to begin with, by its settings; None without any."""
    init = given.get("init")
    if not isinstance(init, str):
        return None
    known: dict[str, str | int]
    if published := find_published(init):
        size = architecture_of(published.backbone).image_size
        known = published.settings
        if published.backbone.startswith("timm/"):  # these have no stem and no width
            known = {"backbone": published.backbone}
        return {**known, **({"image_size": size} if size else {})}
    file = weights_file(init)
    if file is None:
        read_weights(init)  # reports what is missing
    found = find_network(init, given.get("backbone"))
    trained = file is not None and bool(
        read_card(file) if file.suffix == ".safetensors" else read_config(file)
    )
    size = found.image_size if trained else architecture_of(found.name).image_size
    known = {"backbone": found.name}
    if not found.name.startswith("timm/"):
        known |= {"stem": found.stem, "width": found.width}
    return {**known, **({"image_size": size} if size else {})}


class Architecture(NamedTuple):
    """What settings follow from of a network."""

    batch_norm: bool
    image_size: int | None  # of published weights, where the size of their images fixes them


def architecture_of(backbone: str) -> Architecture:
    """What is known of a network by its name; our own have batch norms and take any size."""
    if not backbone.startswith("timm/"):
        return Architecture(batch_norm=True, image_size=None)
    network = without_weights(backbone, 224)
    default: Any = getattr(network.net, "default_cfg", {}).get("input_size", (3, 224, 224))
    if (usual := int(default[1])) != 224:
        network = without_weights(backbone, usual)
    norms = any(isinstance(module, _BatchNorm) for module in network.modules())
    try:  # embeddings of positions, and tables or products over them
        small = shapes_of(without_weights(backbone, SMALL))
    except UserError:
        small = {}
    return Architecture(norms, usual if small != shapes_of(network) else None)


def without_weights(backbone: str, image_size: int) -> Backbone:
    """A network whose parameters take no memory, where timm can build it so."""
    try:
        with torch.device("meta"):
            return build_backbone(backbone, "imagenet", STOCK, image_size)
    except UserError:  # some versions of timm compute with tensors while they build
        return build_backbone(backbone, "imagenet", STOCK, image_size)


def shapes_of(network: Backbone) -> dict[str, torch.Size]:
    """The shape of each parameter by name."""
    return {name: one.shape for name, one in network.named_parameters()}


def look(source: Source) -> Looked:
    """Look at some images: their median size, and whether they can be read."""
    sides, reasons = [], []
    for index in np.unique(np.linspace(0, len(source) - 1, SAMPLE).astype(int)).tolist():
        try:
            sides.append(min(source.read(index).shape[1:]))
        except UnreadableImage as error:
            reasons.append(f"{source.describe(index)}: {error}")
    seen = len(sides) + len(reasons)
    if not sides:
        raise UserError(f"None of {seen} images can be read, such as {reasons[0]}.")
    notes = []
    if len(reasons) > CORRUPT_LIMIT * seen:
        notes.append(
            f"Warning: {len(reasons)} of {seen} images that were looked at are corrupt, such as "
            f"{reasons[0]}. Training stops above {CORRUPT_LIMIT:.0%}: remove them."
        )
    return Looked(int(median(sides)), notes)


def images_per_second(
    config: PretrainConfig,
    opened: Data,
    facts: Facts,
    budget: float,
    clock: Callable[[], float] = time.monotonic,
    reading: float | None = None,
) -> float:
    """Measured in a hundredth of the budget: a training step, and reading and augmenting."""
    method = build_method(config, facts.images, facts.ranks)
    device = torch.device(facts.device)
    micro = config.batch_size // facts.ranks // config.accumulate
    half = config.precision.endswith("mixed")
    layout, timed = bool(config.channels_last), min(micro, TIMED)
    sizes, trial = crop_sizes(config), min(TRIAL, budget / 100)
    with threads_of_rank(facts.ranks, facts.cores):
        step = estimate_seconds(method, sizes, layout, device, micro, half, timed, clock, trial)
        if reading is None:
            reading = reading_of(config, opened, clock)
    seconds = seconds_together(step / micro, reading, device, facts.workers, facts.cores)
    return facts.ranks / seconds


def reading_of(
    config: PretrainConfig, opened: Data, clock: Callable[[], float] = time.monotonic
) -> float:
    """Seconds of an image; to be measured once, before the images are in a cache."""
    source = opened.unlabelled
    return reading_seconds(build_dataset(config, source), len(source), is_remote(source), clock)
