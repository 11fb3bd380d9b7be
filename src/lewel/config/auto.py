"""Settings that fit the images and the machine: what `lewel pretrain FOLDER` uses without a recipe.

Each rule is a pure function of facts, and states why. Only `speed` is measured, and only for a
budget. "Measured" means on two CPU cores; docs/choices.md has the numbers.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from lewel.config.recipes import list_recipes, read_recipe
from lewel.errors import UserError

FEWEST = 50  # images
STEPS = 4_000  # on a CPU without a budget
GPU_STEPS = 100_000
FEW_STEPS = 2_000  # fewer hardly train a network
MANY_STEPS = 50_000  # from here on the paper's schedules fit
TRAINING = 0.85  # of a budget; the rest is for start, k-NN probes and checkpoints
IMAGES_FOR_INIT = 20_000
TUNED = ("lewel_b", "lewel_m", "byol", "moco_v2")  # with settings that were measured


@dataclass(frozen=True)
class Facts:
    """What the choice depends on."""

    images: int
    side: int  # median of the images' shorter sides
    labelled: bool
    device: Literal["cpu", "cuda", "mps"]
    memory: int  # bytes of a device
    cores: int
    ranks: int = 1
    bf16: bool = False
    budget: float | None = None  # seconds
    speed: float | None = None  # images a second, of the chosen network
    init: dict[str, str | int] | None = None  # the network of published weights

    @property
    def core_hours(self) -> float:
        """CPU time that the budget allows; without one a quarter of an hour on each core."""
        return self.cores * (self.budget or 900) / 3600


@dataclass(frozen=True)
class Choice:
    """A setting, its value, and why."""

    key: str  # dotted
    value: Any
    because: str


class Choices:
    """Choices in their order; what the user has given stays."""

    def __init__(self, facts: Facts, given: dict[str, Any]) -> None:
        self.facts, self.given = facts, dotted(given)
        self.made: dict[str, Choice] = {}

    def __getitem__(self, key: str) -> Any:
        return self.made[key].value

    def pick(self, key: str, value: Any, because: str) -> None:
        """Choose a value, unless it is given."""
        if key in self.given:
            value, because = self.given[key], "given"
        self.made[key] = Choice(key, value, because)

    def nested(self) -> dict[str, Any]:
        """The choices as nested settings, as a recipe holds them."""
        out: dict[str, Any] = {}
        for choice in self.made.values():
            *groups, name = choice.key.split(".")
            inside = out
            for group in groups:
                inside = inside.setdefault(group, {})
            inside[name] = choice.value
        return out


def choose(facts: Facts, given: dict[str, Any]) -> Choices:
    """All settings for these facts; for a budget, first without and then with its `speed`."""
    if facts.images < FEWEST:
        raise UserError(
            f"There are {facts.images:,} images, too few to learn from: give {FEWEST} or more, or "
            "use published weights as they are (`lewel embed timm/resnet50 FOLDER`)."
        )
    made = Choices(facts, given)
    choose_network(made)
    choose_batch(made)
    choose_length(made)
    choose_method(made)
    choose_optimiser(made)
    choose_views(made)
    return made


def choose_network(made: Choices) -> None:
    """Image size, stem, depth and width."""
    facts = made.facts
    if facts.init:
        size = min(224, max(64, facts.side // 32 * 32))
        made.pick("image_size", size, f"the images have {facts.side} px, the weights know 224")
        for key, value in facts.init.items():
            made.pick(key, value, "the published weights are for it")
        return
    if facts.device == "cpu":
        large = facts.core_hours >= 24
        if facts.side < 64:
            made.pick("image_size", 32, f"the images have {facts.side} px")
        else:
            size = 96 if large and facts.side >= 96 else 64
            made.pick("image_size", size, "a CPU sees many small images rather than few large ones")
        made.pick("stem", stem_for(made["image_size"]), "keeps at least 4 x 4 locations for maps")
        made.pick("backbone", "resnet18" if large else "resnet10", "a CPU, no GPU")
        width = 32 if facts.core_hours >= 4 else 16
        made.pick("width", width, f"{facts.core_hours:.1f} core hours")
        return
    small = facts.side < 112
    size = 224 if not small else 64 if facts.side >= 56 else 32
    made.pick("image_size", size, f"the images have {facts.side} px")
    made.pick("stem", stem_for(made["image_size"]), "for this image size")
    why = "small images" if small else "the paper's"
    made.pick("backbone", "resnet18" if small else "resnet50", why)
    made.pick("width", 64, "the usual network, so that others can load it")


def stem_for(image_size: int) -> str:
    """The stem of a ResNet for an image size."""
    return "small" if image_size < 64 else "medium" if image_size < 128 else "imagenet"


def choose_batch(made: Choices) -> None:
    """Total batch, a power of two, and ranks share it evenly."""
    facts = made.facts
    most, why = (64, "CPU recipes were tuned with it") if facts.device == "cpu" else (256, "paper")
    batch = min(most, power_of_two(facts.images // 4))
    if batch < most:
        why = f"a quarter of {facts.images:,} images at most"
    made.pick("batch_size", max(batch, 2 * facts.ranks), why)
    made.pick("channels_last", True, "faster convolutions")
    half = facts.device == "cuda"
    precision = ("bf16-mixed" if facts.bf16 else "16-mixed") if half else "32"
    made.pick("precision", precision, "what the device computes fastest and safely")


def choose_length(made: Choices) -> None:
    """Epochs, and for data that a budget can't pass over once, a part of it."""
    facts, batch = made.facts, made["batch_size"]
    if facts.budget is not None:
        if facts.speed is None:  # of the trial, which does not depend on it
            made.pick("epochs", 1, "a trial")
            return
        seen = TRAINING * facts.budget * facts.speed
        why = f"{facts.speed:,.0f} images/s measured, {TRAINING:.0%} of the budget"
        if seen < facts.images and "limit" not in made.given and "epochs" not in made.given:
            made.pick("limit", max(batch, int(seen)), f"the budget is too short for all: {why}")
        made.pick("epochs", max(1, int(seen / facts.images)), why)
        return
    steps = STEPS if facts.device == "cpu" else GPU_STEPS
    epochs = max(1, -(-steps * batch // facts.images))
    why = f"about {steps:,} steps"
    if facts.device != "cpu":
        epochs = min(max(epochs, 100), 1000)
        why = f"{why}, between 100 and 1,000 epochs"
    made.pick("epochs", epochs, why)


def choose_method(made: Choices) -> None:
    """LEWEL_M for short trainings, LEWEL_B for long ones, with their heads and teachers."""
    facts = made.facts
    long = steps_of(made) >= MANY_STEPS
    if long:
        made.pick("method", "lewel_b", "the paper's best for long training (Table 1)")
    else:
        made.pick("method", "lewel_m", "learns faster than LEWEL_B in short training (measured)")
    method = made["method"]
    if method not in TUNED:
        choose_by_recipe(made)
        return
    contrastive = method in ("lewel_m", "moco_v2")
    large = made["backbone"] == "resnet50"
    dim, hidden = ((128, 2048) if contrastive else (256, 4096)) if large else (128, 512)
    made.pick("head.dim", dim, "the paper's" if large else "enough for a small network")
    made.pick("head.hidden", hidden, "the paper's" if large else "enough for a small network")
    if long:
        made.pick("teacher.momentum", 0.999 if contrastive else 0.98, "the paper's")
        made.pick("teacher.schedule", "constant" if contrastive else "cosine", "the paper's")
    else:
        momentum = 0.99 if contrastive else 0.98
        made.pick("teacher.momentum", momentum, "a slower teacher lags behind in short training")
        made.pick("teacher.schedule", "constant" if contrastive else "cosine", "the paper's")
    made.pick("teacher.statistics", "ema", "EMAN collapses in short training (measured)")
    if contrastive:
        queue = min(65_536 if long else 4_096, power_of_two(facts.images))
        made.pick("contrast.queue", queue, "no longer than the data; short when training is short")
        groups = shuffle_groups(made)
        made.pick("contrast.norm_groups", groups, "16 images or more in each group of ShuffleBN")


def shuffle_groups(made: Choices) -> int:
    """Groups of ShuffleBN of 16 images or more, at most 4."""
    return max(1, min(4, int(made["batch_size"]) // made.facts.ranks // 16))


def shipped_recipe(method: str, large: bool) -> str | None:
    """The name of a method's recipe for a large network and long training, or for small ones."""
    names = [f"imagenet_{method}_{epochs}ep" for epochs in (100, 200)]
    names = names if large else [f"tinyimagenet_{method}_15min"]
    return next((name for name in names if name in list_recipes()), None)


def choose_by_recipe(made: Choices) -> None:
    """Head, views and optimiser of another method: those of its shipped recipes, if there are."""
    sizes, training = (
        shipped_recipe(made["method"], large)
        for large in (made["backbone"] == "resnet50", steps_of(made) >= MANY_STEPS)
    )
    if sizes is None or training is None:
        return
    recipe, trained = read_recipe(sizes), read_recipe(training)
    if "options" in recipe:  # those that are given are merged with them later
        because = f"as in {sizes}"
        made.made["options"] = Choice("options", recipe["options"], because)
    for group in ("head", "contrast", "teacher", "views"):
        for key, value in dotted({group: recipe.get(group, {})}).items():
            if key == "contrast.queue":
                value = min(value, power_of_two(made.facts.images))
            if key == "contrast.norm_groups":
                value = shuffle_groups(made)
            if key != "views.small_size":  # by default it follows the image size
                made.pick(key, value, f"as in {sizes}")
    for key, value in dotted({"optim": trained["optim"]}).items():
        made.pick(key, value, f"as in {training}")
    made.pick("optim.lr_batch_size", trained["batch_size"], "the rate is for this batch")
    made.pick("optim.warmup_epochs", round(min(10.0, made["epochs"] / 20), 3), "a twentieth")


def choose_optimiser(made: Choices) -> None:
    """Optimiser, learning rate, warm-up, and the k-NN probe."""
    method, epochs = made["method"], made["epochs"]
    if made.facts.labelled:
        every = max(1, epochs // 4)
        made.pick("knn.every", every, "labels are at hand: k-NN four times; never for training")
    if method not in TUNED:
        return
    contrastive, batch = method in ("lewel_m", "moco_v2"), made["batch_size"]
    if steps_of(made) >= MANY_STEPS:
        name, rate, base = ("sgd", 0.12, 256) if contrastive else ("lars", 3.6, 512)
        why = "twice the paper's, as it does on 100 classes; in proportion to the batch"
        decay = 1e-4 if contrastive else 1e-6
    else:
        name, rate, base = "sgd", 0.12 if contrastive else 0.15, 64
        why = "a search on Tiny-ImageNet-100; in proportion to the batch"
        decay = 1e-4
    made.pick("optim.name", name, "the paper's" if name == "lars" else "short training")
    made.pick("optim.lr", round(rate * min(batch, 4 * base) / base, 4), why)
    made.pick("optim.lr_batch_size", batch, "the rate is for this batch")
    made.pick("optim.weight_decay", decay, "the paper's" if decay < 1e-5 else "the usual one")
    made.pick(
        "optim.warmup_epochs", round(min(10.0, epochs / 20), 3), "a twentieth of the training"
    )


def choose_views(made: Choices) -> None:
    """Views of small images, and MoCo v2's for the contrastive methods."""
    if made["image_size"] < 128:
        made.pick("views.blur", [0.0, 0.0], "blur removes what small images show")
    if made["method"] in ("lewel_m", "moco_v2"):
        made.pick("views.jitter", [0.4, 0.4, 0.4, 0.1], "MoCo v2's")
        made.pick("views.solarise", [0.0, 0.0], "MoCo v2's")


def steps_of(made: Choices) -> int:
    """Optimiser steps of the training."""
    limit = made["limit"] if "limit" in made.made else made.facts.images
    return int(made["epochs"]) * max(1, min(made.facts.images, limit) // int(made["batch_size"]))


def warnings(made: Choices) -> list[str]:
    """Plain sentences on what these choices can't do."""
    facts, found, steps = made.facts, [], steps_of(made)
    if steps < FEW_STEPS:
        found.append(
            f"{steps:,} steps are few: a network needs some thousand. Raise --budget or --epochs."
        )
    if facts.images < IMAGES_FOR_INIT and "init" not in made.given:
        found.append(
            f"{facts.images:,} images are few: begin with published weights, for example "
            "--init timm/resnet50.a1_in1k, unless their licence or size forbids it."
        )
    return found


def with_speed(facts: Facts, speed: float) -> Facts:
    """The facts after the trial."""
    return replace(facts, speed=speed)


def power_of_two(most: int) -> int:
    """The largest power of two up to a number, 1 at least."""
    return 1 << max(0, most.bit_length() - 1)


def dotted(given: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted keys."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, dict) and prefix == "" and key != "options":
            out |= dotted(value, f"{key}.")
        else:
            out[prefix + key] = value
    return out
