"""`lewel compare`: several methods on the same images, each for the same time.

The queue, the folders and the tables are those of `lewel reproduce`; what is compared is planned
here, once, and kept in plan.json.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lewel.config.build import build_method, build_optimizer
from lewel.config.configure import configure
from lewel.config.recipes import list_recipes
from lewel.config.reproduce import Dotted, Experiment, Measurement, Row, Scale
from lewel.config.sizes import crop_sizes
from lewel.data.dense.masks import validation_masks
from lewel.data.pack.urls import shown
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Data
from lewel.errors import UserError
from lewel.files import write_atomically
from lewel.methods.registry import find_method, method_names
from lewel.pages.reproduction import Fact, Shown
from lewel.tasks.auto_facts import gather, images_per_second
from lewel.tasks.reproduction_folder import refuse_other_files
from lewel.tasks.reproduction_plan import Setup
from lewel.tasks.reproduction_tables import show
from lewel.train.estimate import estimate_memory
from lewel.train.run import optimizer_slots

SHARED: Dotted = {"knn.every": 0, "workers": 0, "accelerator": "cpu"}  # one core each
FEW_EPOCHS = 5  # up to here a part of an epoch is a large part of the time
FEW_LABELS: Dotted = {"batch_size": 64, "lr": 0.1, "backbone_lr": 0.01, "lr_batch_size": 64}
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Share:
    """What a method does in its time."""

    method: str
    recipe: str
    settings: Dotted  # epochs, and limit where the time is too short for all images
    speed: float  # images a second on one core
    memory: int  # bytes of a step


@dataclass(frozen=True)
class Comparison:
    """All that is compared."""

    data: str
    shares: list[Share]
    setup: Setup
    experiment: Experiment

    def shown(self, seeds: int) -> Shown:
        """The table as far as it is done, with speed and memory."""
        table = show("compare", self.experiment, self.setup, range(seeds))
        facts = {find_method(one.method).about.title: one for one in self.shares}
        rows = []
        for row in table.rows:
            one = facts.get(row.name)
            steps = one and f"{one.speed:,.0f}", one and f"{one.memory / 1e6:,.0f} MB"
            rows.append(replace(row, cells=[*row.cells, *(Fact(text or "-") for text in steps)]))
        return replace(table, rows=rows, columns=[*table.columns, "images/s", "memory of a step"])


def compare(
    data: str, methods: list[str], budget: float, out: Path, tell: Tell = lambda text: None
) -> Comparison:
    """The plan of a comparison; what an earlier call has planned stays."""
    names = chosen(methods)
    recipes = {name: recipe_of(name, data) for name in names}
    setup = Setup("minutes", out, Path(), scale_of(data, recipes))
    refuse_other_files(setup)
    shares = planned(data, recipes, budget, out / "plan.json", tell)
    rows = [
        Row(name=find_method(one.method).about.title, method=one.method, settings=one.settings)
        for one in shares
    ]
    # It takes its network, and the data, from the first method's run.
    plain = Row(
        name="randomly initialised",
        method=shares[0].method,
        kind="random_init",
        control=True,
        settings=shares[0].settings,
    )
    scale = setup.scale
    experiment = Experiment(
        title=f"Methods on {shown(data)}",
        evaluations=list(scale.evaluations),
        rows=[*rows, *([plain] if "knn" in scale.evaluations else [])],
    )
    return Comparison(data, shares, setup, experiment)


def chosen(methods: list[str]) -> list[str]:
    """Methods by their names; `all`, or none, is every one."""
    known = method_names()
    if not methods or "all" in methods:
        return [name for name in known if f"tinyimagenet_{name}_15min" in list_recipes()]
    for name in methods:
        find_method(name)  # an unknown name is refused with those that are known
    return list(dict.fromkeys(methods))


def recipe_of(method: str, data: str) -> str:
    """The short recipe of a method for its data."""
    recipe = f"scenes_{method}" if data == "scenes" else f"tinyimagenet_{method}_15min"
    if recipe not in list_recipes():
        raise UserError(
            f"{method} has no recipe {recipe}: compare methods that have one (`lewel recipes`)."
        )
    return recipe


def scale_of(data: str, recipes: dict[str, str]) -> Scale:
    """How methods are evaluated on some data."""
    scenes = data == "scenes"
    opened = open_data(data, image_size=32)
    evaluations = {}
    if opened.train is not None and opened.val is not None:
        evaluations = {
            "knn": measurement("k-NN", "knn", data),
            "linear": measurement("linear probe", "linear", data, fast=True),
            "few": few_labels(data, scenes),
        }
    masks = scenes or validation_masks(data, 32) is not None
    if masks:
        recipe = "segment_small" if scenes else "segment_voc_small"
        evaluations["segment"] = measurement("mIoU", "segment", data, recipe)
    metric = "pointing" if masks else "consistency"
    evaluations["where"] = Measurement(
        title="maps: pointing game" if masks else "maps: consistency",
        task="where",
        data=data,
        metric=f"baselines.run.{metric}.value",
    )
    return Scale(
        title=f"{shown(data)}, the same time for each method, one core",
        data=data,
        needs="",
        recipes={"imagenet": recipes},
        settings=SHARED,
        evaluations=evaluations,
    )


def measurement(
    title: str, task: str, data: str, recipe: str | None = None, **settings: Any
) -> Measurement:
    """An evaluation by its first number."""
    metric = "miou" if task == "segment" else "top1"
    given = {"title": title, "task": task, "data": data, "recipe": recipe, "metric": metric}
    return Measurement.model_validate({**given, "settings": settings})


def few_labels(data: str, scenes: bool) -> Measurement:
    """Fine-tuning with few labels."""
    if scenes:
        return measurement("few labels", "finetune", data, "scenes_few_labels")
    return measurement("10 % of the labels", "finetune", data, "finetune_10", **FEW_LABELS)


def planned(
    data: str, recipes: dict[str, str], budget: float, file: Path, tell: Tell
) -> list[Share]:
    """The shares of all methods: those of the file, and those that are measured now."""
    about = {"data": shown(data), "budget": budget}
    known: dict[str, Share] = {}
    if file.exists():
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            known = {one["method"]: Share(**one) for one in before["shares"]}
            same = {key: before[key] for key in about}
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{file} is damaged: delete it, or choose another --out.") from None
        if same != about:
            raise UserError(
                f"{file} is a comparison on {same['data']} for {same['budget']:g} s a method: "
                "give the same, or choose another --out."
            )
    missing = [name for name in recipes if name not in known]
    opened = open_data(data, image_size=32) if missing else None
    for name in missing:
        assert opened is not None
        tell(f"{name}: timing some steps")
        known[name] = share = measured_share(name, recipes[name], data, opened, budget)
        for remark in remarks(share, data, len(opened.unlabelled)):
            tell(f"{name}: {remark}")
    if missing:
        content = json.dumps({**about, "shares": [asdict(one) for one in known.values()]}, indent=1)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, lambda aside: aside.write_text(content, encoding="utf-8"))
    return [known[name] for name in recipes]


def remarks(share: Share, data: str, images: int) -> list[str]:
    """What the method has to say of a training of this length."""
    config = configure(data, share.recipe, share.settings)
    used = min(images, config.limit or images)
    steps = config.epochs * (used // config.batch_size)
    return build_method(config, used).remarks(config.epochs, steps)


def measured_share(method: str, recipe: str, data: str, opened: Data, budget: float) -> Share:
    """How long a method trains: its speed is measured on one thread, as it will run."""
    config = configure(data, recipe, {"accelerator": "cpu", "workers": 0})
    if len(opened.unlabelled) < config.batch_size:
        raise UserError(
            f"{shown(data)} has {len(opened.unlabelled):,} images, fewer than a batch of {recipe} "
            f"({config.batch_size}): methods are compared on more."
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        facts, _ = gather(opened, {"accelerator": "cpu"}, None)
        facts = replace(facts, cores=1, workers=0)
        # By CPU time, so that other processes do not favour a method.
        speed = images_per_second(config, opened, facts, budget, time.process_time)
        trained = build_method(config, facts.images)
        slots = optimizer_slots(build_optimizer(trained, config))
        memory = estimate_memory(trained, slots, crop_sizes(config), config.batch_size)
    finally:
        torch.set_num_threads(threads)
    settings = length(budget * speed, facts.images, 2 * config.batch_size)
    return Share(method, recipe, settings, round(speed, 1), memory.total)


def length(seen: float, images: int, fewest: int) -> Dotted:
    """Epochs for so many samples seen; if they are few, of a part of the images.

    >>> length(1500, 1000, 64), length(400, 1000, 64), length(9400, 1000, 64)
    ({'epochs': 2, 'limit': 750}, {'epochs': 1, 'limit': 400}, {'epochs': 9})
    """
    epochs = max(1, math.ceil(seen / images))
    if epochs > FEW_EPOCHS:
        return {"epochs": round(seen / images)}
    limit = max(fewest, int(seen / epochs))
    return {"epochs": epochs, "limit": limit} if limit < images else {"epochs": epochs}
