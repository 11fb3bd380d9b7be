"""`lewel pretrain` without a recipe: facts about images and machine, and the chosen settings."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lewel.config.auto import choose, warnings
from lewel.config.auto_choices import Choices, Facts
from lewel.config.auto_length import with_speed
from lewel.config.build import build_method, build_optimizer
from lewel.config.configure import configure
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import resolve
from lewel.config.settings import storage_of
from lewel.config.sizes import crop_sizes
from lewel.data.pack.urls import shown
from lewel.data.sources.file_list import Lists
from lewel.data.sources.open import open_data
from lewel.errors import UserError
from lewel.methods.base import Method
from lewel.progress import rank_from_outside, show, wide
from lewel.tasks.auto_facts import gather, images_per_second
from lewel.tasks.pretrain_parts import memory_explained
from lewel.train.estimate import USABLE, estimate_memory, largest_batch, norm_groups
from lewel.train.run import optimizer_slots

CHOSEN = ("lewel_b", "lewel_m")  # methods that a run without --method may have
STORAGE = ("storage_timeout", "cache", "cache_size")  # settings that opening data needs
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
SHORTEST, LONGEST = 60, 366 * 86400  # seconds
FLAGS = {"contrast.norm_groups": "contrast.shuffle_bn_groups"}  # settings with a better name


@dataclass(frozen=True)
class Automatic:
    """A configuration, the choices that it consists of (none where a run is resumed), and notes."""

    config: PretrainConfig
    choices: Choices | None
    notes: tuple[str, ...] = ()


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
    """Seconds of a time such as 30m, 1h30m or 2d."""
    units = "|".join(sorted(UNITS, key=len, reverse=True))
    part = rf"(\d+(?:\.\d+)?)\s*({units})"
    words = str(text).strip().lower()
    found = re.findall(part, words) if re.fullmatch(rf"({part}\s*)+", words) else []
    seconds = sum(float(number) * UNITS[unit] for number, unit in found)
    if not SHORTEST <= seconds <= LONGEST:
        raise UserError(
            f"--budget is {text!r}: expected a time from 1m to 366d, as 30m, 8h, 1h30m or 2d."
        )
    return seconds


@memory_explained()
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
    begun = begun_run(out, opened.unlabelled.name, given.get("method"), data)
    if begun is not None:
        config = configure(data, str(begun / "config.yaml"), given)
        return Automatic(config, None, tuple(notes_of_begun(begun, config, budget)))
    facts, notes = gather(opened, given, budget)
    choices, config, method = settle(data, facts, given)
    if budget is not None:
        timed = with_speed(facts, images_per_second(config, opened, facts))
        choices, config, method = settle(data, timed, given)
    notes += notes_on_memory(config, method, facts) + notes_on_disk(config, method, out)
    return Automatic(config, choices, tuple(notes))


def settle(
    data: str, facts: Facts, given: dict[str, Any]
) -> tuple[Choices, PretrainConfig, Method]:
    """The choices for these facts, with micro-batches that fit the memory."""
    choices = choose(facts, given)
    config = configure(data, choices.nested(), given)
    method = build_method(config, facts.images, facts.ranks)
    parts = micro_batches(config, method, facts)
    why = f"the batch {'fits' if parts == 1 else 'does not fit'} {facts.memory / 1e9:.0f} GB"
    choices.pick("accumulate", parts, why)
    return choices, configure(data, choices.nested(), given), method


def begun_run(out: Path | None, name: str, method: str | None, data: str) -> Path | None:
    """The run folder of the same command, if it has been begun: its settings stay."""
    if out is not None:
        return out if (out / "config.yaml").exists() else None
    methods = CHOSEN if method is None else (method,)
    folders = [Path("runs") / f"{name}-{one}" for one in methods]
    begun = [one for one in folders if (one / "config.yaml").exists() and is_of(one, data)]
    if len(begun) > 1:
        raise UserError(
            f"{' and '.join(map(str, begun))} both exist: give "
            f"{' or '.join(f'--method {one}' for one in methods)} to resume one of them, or --out "
            "for another run."
        )
    return begun[0] if begun else None


def is_of(run: Path, data: str) -> bool:
    """Whether a run has been begun on this data; a damaged one is examined by its command."""
    try:
        before, now = (configure(one, str(run / "config.yaml"), {}).data for one in (None, data))
    except UserError:
        return True
    return shown(before) == shown(now)


def notes_of_begun(run: Path, config: PretrainConfig, budget: float | None) -> list[str]:
    """Whose settings these are, and that a budget does not change them."""
    notes = [f"{run} exists: its settings are used; --out NEW starts another run."]
    if budget is not None:
        notes.append(
            f"--budget chooses the length of new runs; this one has {config.epochs} epochs. "
            "--epochs N in its place trains for longer."
        )
    return notes


def notes_on_memory(config: PretrainConfig, method: Method, facts: Facts) -> list[str]:
    """A warning where even the smallest micro-batch does not fit the memory."""
    slots = optimizer_slots(build_optimizer(method, config))
    micro, half = 2 * norm_groups(method), config.precision.endswith("mixed")
    if config.batch_size // facts.ranks // config.accumulate > 2 * micro:
        return []  # it was chosen by the same estimate
    needed = estimate_memory(method, slots, crop_sizes(config), micro, half).total
    if needed <= facts.memory:
        return []
    return [
        f"Warning: {micro} images at a time need about {needed / 1e9:.1f} GB, and there are "
        f"{facts.memory / 1e9:.1f} GB: choose a smaller --image-size or --backbone."
    ]


def notes_on_disk(config: PretrainConfig, method: Method, out: Path | None) -> list[str]:
    """A warning where the checkpoints do not fit the disk."""
    trained = sum(one.nbytes for one in method.parameters() if one.requires_grad)
    kept = sum(one.nbytes for one in (*method.parameters(), *method.buffers()))
    one = kept + optimizer_slots(build_optimizer(method, config)) * trained
    wanted = (config.keep_checkpoints + 1) * one  # the next is written before the oldest is deleted
    place = (out or Path("runs")).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if wanted < free:
        return []
    return [
        f"Warning: checkpoints take about {wanted / 1e9:.1f} GB, and {place} has {free / 1e9:.1f} "
        "GB free: make room, or choose --out on another disk."
    ]


def micro_batches(config: PretrainConfig, method: Method, facts: Facts) -> int:
    """How many parts of a batch fit a device's memory one after the other."""
    share, half = config.batch_size // facts.ranks, config.precision.endswith("mixed")
    slots = optimizer_slots(build_optimizer(method, config))
    available = int(USABLE * facts.memory)
    fits = largest_batch(method, slots, crop_sizes(config), available, share, half)
    groups = norm_groups(method)
    most = share // (2 * groups)  # two images or more in each group of ShuffleBN
    whole = [n for n in range(1, most + 1) if share % (n * groups) == 0]
    return next((n for n in whole if share // n <= fits), whole[-1] if whole else 1)


def show_settings(found: Automatic, console: Console) -> None:
    """What was chosen, why, and the flag that changes it; printed by the first process alone."""
    if rank_from_outside() != 0:
        return
    if found.choices is not None:
        table = Table(box=None, pad_edge=False)
        for column in ("setting", "value", "because", "change it by"):
            table.add_column(column, overflow="fold")
        for choice in found.choices.made.values():
            key = FLAGS.get(choice.key, choice.key)
            value = "auto" if choice.value is None else str(choice.value)
            name = key.replace("_", " ").replace(".", ": ")
            table.add_row(name, value, choice.because, "--" + key.replace("_", "-"))
        before = console.width  # it may be the user's own console
        wide(console, 120).print(table)
        if not console.is_terminal:
            console.width = before
        show(console, *warnings(found.choices))
    show(console, *found.notes)
