"""Settings that fit the images and the machine: what `lewel pretrain FOLDER` uses without a recipe.

Each rule is a pure function of facts, and states why. Only `speed` is measured, and only for a
budget. "Measured" means on two CPU cores; docs/choices.md has the numbers.
"""

from typing import Any

from lewel.config.auto_choices import Choices, Facts, power_of_two
from lewel.config.auto_length import FEWEST, choose_length, steps_of
from lewel.config.auto_method import choose_method, choose_optimiser, choose_views
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import unsafe_layout
from lewel.errors import UserError

FEW_STEPS = 2_000  # fewer hardly train a network
IMAGES_FOR_INIT = 20_000
LOCATIONS = 4  # along each side of a map, at least
STRIDES = {"imagenet": 32, "medium": 16, "small": 8}  # of a ResNet by its stem
FEW_PIXELS = 16
KEEPS = "keeps at least 4 x 4 locations for maps"


def choose(facts: Facts, given: dict[str, Any]) -> Choices:
    """All settings for these facts; for a budget, first without and then with its `speed`."""
    if facts.images < FEWEST:
        many = "is 1 image" if facts.images == 1 else f"are {facts.images:,} images"
        raise UserError(
            f"There {many}, too few to train on: give {FEWEST} or more, or use published "
            "weights as they are (`lewel embed timm/resnet50 FOLDER`)."
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
    facts, stem = made.facts, made.given.get("stem")
    coarse = LOCATIONS * STRIDES[str((facts.init or {}).get("stem", "imagenet"))]  # pixels
    if facts.init or str(made.given.get("backbone")).startswith("timm/"):
        most = 128 if facts.device == "cpu" else 224
        why = "larger ones take a CPU long" if most == 128 else "the usual size"
        size = min(most, max(coarse, facts.side // 32 * 32))
        if size != most:
            why = f"the images have {facts.side} px"
        made.pick("image_size", size, KEEPS if facts.side < size else why)
        for key, value in (facts.init or {"backbone": ""}).items():  # perhaps their size, too
            made.pick(key, value, "that of the --init weights")
        return
    if facts.device == "cpu":
        large = facts.core_hours >= 24
        if stem == "imagenet":
            made.pick("image_size", coarse, KEEPS)
        elif facts.side < 64 and stem != "medium":
            made.pick("image_size", 32, f"the images have {facts.side} px")
        else:
            size = 96 if large and facts.side >= 96 else 64
            why = "a CPU sees many small images rather than few large ones"
            made.pick("image_size", size, why if facts.side >= 64 else KEEPS)
        fine = made["image_size"] >= LOCATIONS * STRIDES["small"]
        made.pick("stem", stem_for(made["image_size"]), KEEPS if fine else "gives the finest maps")
        made.pick("backbone", "resnet18" if large else "resnet10", "a CPU, no GPU")
        width = 32 if facts.core_hours >= 4 else 16
        made.pick("width", width, facts.time)
        return
    small = facts.side < 112
    size = 224 if not small else 64 if facts.side >= 56 else 32
    least = LOCATIONS * STRIDES.get(str(stem), 0)
    why = f"the images have {facts.side} px" if size >= least else KEEPS
    made.pick("image_size", max(size, least), why)
    made.pick("stem", stem_for(made["image_size"]), "for this image size")
    why = "small images" if small else "the paper's"
    made.pick("backbone", "resnet18" if small else "resnet50", why)
    made.pick("width", 64, "the usual network, so that others can load it")


def stem_for(image_size: int) -> str:
    """The stem of a ResNet for an image size."""
    return "small" if image_size < 64 else "medium" if image_size < 128 else "imagenet"


def choose_batch(made: Choices) -> None:
    """Total batch, a power of two, or the multiple of the ranks below it."""
    facts = made.facts
    if facts.images < 2 * facts.ranks:
        raise UserError(
            f"{facts.images:,} images are too few for {facts.ranks} devices, which take 2 or more "
            "each: use fewer (--devices, or the number of processes that are started)."
        )
    most, why = (64, "CPU recipes were tuned with it") if facts.device == "cpu" else (256, "paper")
    each = (16 if facts.device == "cpu" else 32) * facts.ranks  # batch norms need some on a device
    if each > most:
        most, why = power_of_two(2 * each - 1), f"{each // facts.ranks} or more on each device"
    batch = min(most, power_of_two(facts.images // 3))
    if batch < most:
        why = f"a third of {facts.images:,} images at most"
    shared = max(batch - batch % facts.ranks, 2 * facts.ranks)
    made.pick("batch_size", shared, why if shared == batch else f"{facts.ranks} devices share it")
    network = ("image_size", "backbone", "stem", "width")
    chosen = {key: made[key] for key in network if key in made.made}
    if unsafe_layout(PretrainConfig.model_validate(chosen)):
        made.pick("channels_last", False, "a CPU cannot train so narrow a network in it")
    else:
        made.pick("channels_last", True, "faster convolutions")
    half = facts.device == "cuda"
    precision = ("bf16-mixed" if facts.bf16 else "16-mixed") if half else "32"
    made.pick("precision", precision, "what the device computes fastest and safely")
    made.pick("workers", None, f"by the cores of the machine: {facts.workers} here")


def warnings(made: Choices) -> list[str]:
    """Plain sentences on what these choices can't do."""
    facts, found, steps = made.facts, [], steps_of(made)
    if steps < FEW_STEPS:
        found.append(
            f"{steps:,} steps are few: a network needs some thousand. Raise "
            f"{'--epochs' if facts.budget is None else '--budget'}."
        )
    if facts.side < FEW_PIXELS:
        found.append(
            f"Half of the images have {facts.side} px or fewer on their shorter side: they show "
            "little, and are enlarged."
        )
    queue = made.given.get("contrast.queue") or 0
    if queue > made.images and "contrast.queue" in made.made:
        found.append(
            f"A queue of {queue:,} keys holds older keys of every one of {made.images:,} images, "
            f"as its own negatives: --contrast.queue {power_of_two(made.images)} or less."
        )
    if facts.images < IMAGES_FOR_INIT and not {"init", "backbone"} & made.given.keys():
        name = "resnet18" if facts.device == "cpu" else "resnet50"
        slow = " (hours on a CPU; --budget limits them)" if facts.device == "cpu" else ""
        found.append(
            f"{facts.images:,} images are few: begin with published weights, for example "
            f"--init timm/{name}.a1_in1k{slow}, unless their licence or size forbids it."
        )
    return found
