"""`lewel pretrain` without a recipe: facts about images and machine, and the chosen settings."""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from lewel.config.auto import LOCATIONS, choose, warnings
from lewel.config.auto_choices import Choices, Facts
from lewel.config.auto_length import with_speed
from lewel.config.auto_method import choose_groups
from lewel.config.build import build_method, build_optimizer
from lewel.config.configure import configure
from lewel.config.identity import differences
from lewel.config.methods import taken
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import resolve
from lewel.config.settings import explain, storage_of
from lewel.config.sizes import check_batch, crop_sizes
from lewel.data.sources.file_list import Lists
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Data
from lewel.errors import UserError
from lewel.methods.base import Method
from lewel.progress import rank_from_outside, show, wide
from lewel.tasks.auto_begun import begun_run, notes_of_begun, recipe_of
from lewel.tasks.auto_facts import gather, images_per_second, reading_of
from lewel.tasks.healing import settings_before
from lewel.tasks.pretrain_parts import memory_explained
from lewel.tasks.speed import threads_of_rank
from lewel.train.estimate import USABLE, estimate_memory, largest_batch
from lewel.train.resume import refuse_another_run
from lewel.train.run import optimizer_slots
from lewel.train.run_folder import RunFolder

STORAGE = ("storage_timeout", "cache", "cache_size")  # settings that opening data needs
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
SHORTEST, LONGEST = 60, 366 * 86400  # seconds
SHORT_QUEUE = 4096  # keys that take no time beside a network
FEW_IMAGES = 16  # of a micro-batch: statistics of fewer are noise
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
    given = typed(given)
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
        config = configure(data, recipe_of(begun), given)
        if (before := settings_before(RunFolder(begun))[0]) is not None:
            refuse_another_run(RunFolder(begun), differences(before, config))
        return Automatic(config, None, tuple(notes_of_begun(begun, config, budget)))
    facts, notes = gather(opened, given, budget)
    choices, config, method = settle(data, facts, given)
    if budget is not None:
        facts = timed(data, opened, facts, given, config, budget)
        choices, config, method = settle(data, facts, given)
    notes += notes_on_memory(config, method, facts) + notes_on_disk(config, method, out)
    notes += notes_on_maps(config, method)
    return Automatic(config, choices, tuple(notes))


def timed(
    data: str,
    opened: Data,
    facts: Facts,
    given: dict[str, Any],
    trial: PretrainConfig,
    budget: float,
) -> Facts:
    """The facts with the measured speed of what is trained by it.

    The speed of the trial may lead to another method or a long queue: then theirs is measured.
    """
    with threads_of_rank(facts.ranks, facts.cores):
        reading = reading_of(trial, opened)
    first = with_speed(facts, images_per_second(trial, opened, facts, budget, reading=reading))
    _, config, _ = settle(data, first, given)
    if same_cost(config, trial):
        return first
    second = with_speed(facts, images_per_second(config, opened, facts, budget, reading=reading))
    _, found, _ = settle(data, second, given)
    if found.method == config.method:
        return second
    # Of two methods the slower one would not train for long, the faster one would: the faster.
    return replace(first if found.method == trial.method else second, long=False)


def same_cost(one: PretrainConfig, other: PretrainConfig) -> bool:
    """Whether a step of both takes as long."""
    queues = {one.contrast.queue or 0, other.contrast.queue or 0}
    return one.method == other.method and (len(queues) == 1 or max(queues) <= SHORT_QUEUE)


def typed(given: dict[str, Any]) -> dict[str, Any]:
    """What the user gave with the types of its settings: rules compute with it."""
    try:
        checked = PretrainConfig.model_validate(given)
    except ValidationError as error:
        raise UserError(explain(error, PretrainConfig)) from None
    return checked.model_dump(exclude_unset=True)


def settle(
    data: str, facts: Facts, given: dict[str, Any]
) -> tuple[Choices, PretrainConfig, Method]:
    """The choices for these facts, with micro-batches that fit the memory."""
    choices = choose(facts, given)
    config = configure(data, choices.nested(), given)
    check_batch(config, data, choices.images, facts.ranks)
    method = build_method(config, facts.images, facts.ranks)
    share, fits = config.batch_size // facts.ranks, fitting_batch(config, method, facts)
    groups = choices.given.get("contrast.norm_groups", 1)
    parts = micro_batches(share, fits, max(1, groups // facts.ranks))
    whole = parts == 1 and share <= fits
    why = f"the batch {'fits' if whole else 'does not fit'} {facts.memory / 1e9:.0f} GB"
    choices.pick("accumulate", parts, why)
    if "contrast.norm_groups" in choices.made:
        choose_groups(choices)  # of a micro-batch
    config = configure(data, choices.nested(), given)
    return choices, config, build_method(config, facts.images, facts.ranks)


def notes_on_memory(config: PretrainConfig, method: Method, facts: Facts) -> list[str]:
    """A warning where a micro-batch does not fit the memory, or is too small for batch norms."""
    slots, ranks = optimizer_slots(build_optimizer(method, config)), facts.ranks
    micro = config.batch_size // ranks // config.accumulate
    half = config.precision.endswith("mixed")
    needed = estimate_memory(method, slots, crop_sizes(config), micro, half).total
    smaller = f"there are {facts.memory / 1e9:.1f} GB: choose a smaller --image-size or --backbone"
    smaller += ", or an even --batch-size." if micro % 2 else "."
    if needed > facts.memory:
        return [
            f"Warning: {micro} images at a time need about {needed / 1e9:.1f} GB, and {smaller}"
        ]
    if config.accumulate > 1 and micro < FEW_IMAGES:
        return [f"Warning: only {micro} images at a time fit, too few for batch norms; {smaller}"]
    if micro < FEW_IMAGES and not (config.sync_batch_norm and ranks > 1):
        way = " or use --sync-bn" if facts.device == "cuda" else " or use fewer devices"
        only = f"Warning: only {micro} images at a time, too few for batch norms"
        return [f"{only}: raise --batch-size{way if ranks > 1 else ''}."]
    return []


def notes_on_maps(config: PretrainConfig, method: Method) -> list[str]:
    """A warning where learned maps have few locations to choose from."""
    locations = method.student.backbone.locations(config.image_size)
    if locations >= LOCATIONS**2 or "head.maps" not in taken(type(method)):
        return []
    free = config.init is None and not config.backbone.startswith("timm/")
    finer = " or a finer --stem" if free and config.stem != "small" else ""
    return [f"Warning: maps have {locations} locations: give a larger --image-size{finer}."]


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


def fitting_batch(config: PretrainConfig, method: Method, facts: Facts) -> int:
    """The most images that fit a device's memory at a time."""
    share, half = config.batch_size // facts.ranks, config.precision.endswith("mixed")
    slots = optimizer_slots(build_optimizer(method, config))
    available = int(USABLE * facts.memory)
    return largest_batch(method, slots, crop_sizes(config), available, share, half)


def micro_batches(share: int, fits: int, groups: int) -> int:
    """In how many parts a device's share of the batch fits one after the other."""
    most = share // (2 * groups)  # two images or more in each group of ShuffleBN
    whole = [n for n in range(1, most + 1) if share % (n * groups) == 0]
    return next((n for n in whole if share // n <= fits), whole[-1] if whole else 1)


def flag_to_change(key: str, value: object) -> str:
    """The flag of a setting; of a switch that is on, the one that turns it off.

    >>> flag_to_change("channels_last", True), flag_to_change("optim.lr", 0.1)
    ('--no-channels-last', '--optim.lr')
    """
    if value is True:
        group, dot, name = key.rpartition(".")
        key = f"{group}{dot}no_{name}"
    return "--" + (key if key.startswith("options.") else key.replace("_", "-"))


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
            table.add_row(name, value, choice.because, flag_to_change(key, choice.value))
        before = console.width  # it may be the user's own console
        wide(console, 120).print(table)
        if not console.is_terminal:
            console.width = before
        show(console, *warnings(found.choices))
    show(console, *found.notes)
