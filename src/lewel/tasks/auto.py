"""`lewel pretrain` without a recipe: facts about images and machine, and the chosen settings."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from lewel.config.auto import choose
from lewel.config.auto_choices import Choices, Facts
from lewel.config.auto_length import with_speed
from lewel.config.build import build_dataset, build_method, build_optimizer
from lewel.config.configure import configure
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import resolve
from lewel.config.settings import storage_of
from lewel.config.sizes import crop_sizes
from lewel.data.sources.file_list import Lists
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Data, Source
from lewel.data.workers import cores
from lewel.errors import UserError
from lewel.host import host_memory
from lewel.interop.published import find_published
from lewel.train.devices import placement
from lewel.train.estimate import USABLE, estimate_seconds, largest_batch, norm_groups
from lewel.train.run import optimizer_slots

SAMPLE = 64  # images whose size is looked at
TRIAL = 24  # images that a trial reads
CHOSEN = ("lewel_b", "lewel_m")  # methods that a run without --method may have
STORAGE = ("storage_timeout", "cache", "cache_size")  # settings that opening data needs
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Automatic:
    """A configuration, and the choices that it consists of; none where a run is resumed."""

    config: PretrainConfig
    choices: Choices | None


def settings(
    data: str | None,
    recipe: str | None,
    given: dict[str, Any],
    out: Path | None = None,
    budget: str | None = None,
) -> Automatic:
    """The settings of a run: a recipe's, or those that fit images and machine."""
    seconds = None if budget is None else parse_budget(budget)
    if budget is not None and "epochs" in given:
        raise UserError(
            f"--budget {budget} chooses epochs, and --epochs {given['epochs']} is given: leave out "
            "one."
        )
    if recipe is None:
        return configure_automatically(data, given, out, seconds)
    if budget is not None:
        raise UserError(
            f"--budget {budget} chooses epochs, and the recipe {recipe} has its own: leave out one."
        )
    return Automatic(configure(data, recipe, given), None)


def parse_budget(text: str) -> float:
    """Seconds of a time such as 30m, 8h or 2d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 60 <= seconds < 366 * 86400:
        raise UserError(f"--budget is {text!r}: expected a time of 1m or more, as 30m, 8h or 2d.")
    return seconds


def configure_automatically(
    data: str | None, given: dict[str, Any], out: Path | None, budget: float | None
) -> Automatic:
    """Settings for these images on this machine; those of the run folder if it has been begun."""
    if data is None:
        return Automatic(configure(data, "paper", given), None)  # reports what is missing
    opened = open_data(
        data,
        image_size=32,
        limit=given.get("limit"),
        classes=given.get("classes"),
        lists=Lists.beside(out),
        storage=storage_of(resolve({}, {key: given[key] for key in STORAGE if key in given})),
    )
    begun = begun_run(out, opened.unlabelled.name, given.get("method"))
    if begun is not None:
        return Automatic(configure(data, str(begun / "config.yaml"), given), None)
    facts = gather(opened, given, budget)
    choices = choose(facts, given)
    config = configure(data, choices.nested(), given)
    if budget is not None:
        choices = choose(with_speed(facts, images_per_second(config, opened, facts)), given)
        config = configure(data, choices.nested(), given)
    if facts.device == "cuda" and (parts := micro_batches(config, facts)) > 1:
        choices.pick("accumulate", parts, f"the device has {facts.memory / 1e9:.0f} GB")
        config = configure(data, choices.nested(), given)
    return Automatic(config, choices)


def begun_run(out: Path | None, data: str, method: str | None) -> Path | None:
    """The run folder of the same command, if it has been begun: its settings stay."""
    methods = CHOSEN if method is None else (method,)
    folders = [Path("runs") / f"{data}-{name}" for name in methods] if out is None else [out]
    return next((folder for folder in folders if (folder / "config.yaml").exists()), None)


def micro_batches(config: PretrainConfig, facts: Facts) -> int:
    """How many parts of a batch fit a device's memory one after the other."""
    method = build_method(config, facts.images, facts.ranks)
    share, half = config.batch_size // facts.ranks, config.precision.endswith("mixed")
    slots = optimizer_slots(build_optimizer(method, config))
    available = int(USABLE * facts.memory)
    fits = largest_batch(method, slots, crop_sizes(config), available, share, half)
    groups = norm_groups(method)
    whole = [n for n in range(1, share // 2 + 1) if share % (n * groups) == 0]
    return next((n for n in whole if share // n <= fits), whole[-1] if whole else 1)


def gather(opened: Data, given: dict[str, Any], budget: float | None) -> Facts:
    """The facts about images and machine."""
    accelerator = given.get("accelerator", "auto")
    published = find_published(given["init"]) if given.get("init") else None
    place = placement(given.get("devices"), given.get("nodes"))
    if budget is not None and place.starter != "lewel":
        raise UserError(
            f"--budget measures the speed of one process, not of {place.ranks} that "
            f"{place.starter} has started: give --epochs (--dry-run states the time)."
        )
    found = torch.accelerator.current_accelerator() if accelerator != "cpu" else None
    kind = found.type if found is not None and torch.accelerator.is_available() else "cpu"
    if kind == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
    else:
        memory = host_memory()[0]
    return Facts(
        images=len(opened.unlabelled),
        side=shorter_side(opened.unlabelled),
        labelled=opened.train is not None,
        device="cuda" if kind == "cuda" else "mps" if kind == "mps" else "cpu",
        memory=memory,
        cores=cores(place.devices),
        ranks=place.ranks,
        bf16=kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False),
        budget=budget,
        init=published.settings if published else None,
    )


def shorter_side(source: Source) -> int:
    """The median of some images' shorter sides in pixels."""
    sides, reasons = [], []
    for index in np.unique(np.linspace(0, len(source) - 1, SAMPLE).astype(int)).tolist():
        try:
            sides.append(min(source.read(index).shape[1:]))
        except UnreadableImage as error:
            reasons.append(f"{source.describe(index)}: {error}")
    if not sides:
        raise UserError(f"None of {len(reasons)} images can be read, such as {reasons[0]}.")
    return int(median(sides))


def images_per_second(
    config: PretrainConfig,
    opened: Data,
    facts: Facts,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Measured: a training step, and reading and augmenting, which share the cores of a CPU."""
    method = build_method(config, facts.images)
    device = torch.device(facts.device)
    batch = config.batch_size // facts.ranks
    half = config.precision.endswith("mixed")
    layout = bool(config.channels_last)
    sizes = crop_sizes(config)
    step = estimate_seconds(method, sizes, layout, device, batch, half, batch, clock)
    training = step / batch
    dataset = build_dataset(config, opened.unlabelled)
    many = min(TRIAL, facts.images)
    dataset.__getitems__([(0, 0)])
    begun = clock()
    dataset.__getitems__([(0, index) for index in range(many)])
    reading = (clock() - begun) / many / facts.cores
    seconds = training + reading if facts.device == "cpu" else max(training, reading)
    return facts.ranks / seconds
