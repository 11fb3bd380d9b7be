"""The method for these facts, with its head, teacher, optimiser and views."""

from lewel.config.auto_choices import Choices, power_of_two
from lewel.config.auto_length import is_long, steps_of
from lewel.config.recipes import list_recipes, read_recipe
from lewel.config.settings import dotted
from lewel.nn.backbone import STOCK

# Methods whose settings were measured: learning rates of short training at a batch of 64.
TUNED = {"lewel_b": 0.15, "lewel_m": 0.04, "byol": 0.05, "moco_v2": 0.04}


def choose_method(made: Choices) -> None:
    """LEWEL_M for short trainings, LEWEL_B for long ones, with their heads and teachers."""
    long = is_long(made)
    if long:
        made.pick("method", "lewel_b", "the paper's best for long training (Table 1)")
    else:
        made.pick("method", "lewel_m", "learns faster than LEWEL_B in short training (measured)")
    method = made["method"]
    if method not in TUNED:
        choose_by_recipe(made)
        return
    contrastive = method in ("lewel_m", "moco_v2")
    large = is_large(made)
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
    if contrastive:
        made.pick("teacher.statistics", "ema", "the paper's, with ShuffleBN")
        if made.given.get("contrast.negatives") != "batch":
            made.pick("contrast.queue", *queue_for(made))
        choose_groups(made)
    elif long:
        made.pick("teacher.statistics", "eman", "the paper's for 100 and 200 epochs")
    else:
        made.pick("teacher.statistics", "ema", "EMAN collapses in short training (measured)")


def queue_for(made: Choices) -> tuple[int, str]:
    """Keys, a power of two: in short training old keys of a fast teacher mislead (measured)."""
    recent = int(made["batch_size"]) * steps_of(made) // 200
    return min(
        (65_536, "the paper's"),
        (power_of_two(max(256, recent)), "keys of the last 1/200 of training, 256 at least"),
        (power_of_two(made.images), "no more than there are images"),
    )


def choose_groups(made: Choices) -> None:
    """ShuffleBN's groups: 16 images or more of a micro-batch in each, at most 4."""
    if made.given.get("sync_batch_norm") and made.facts.ranks > 1:
        made.pick("contrast.norm_groups", 1, "SyncBN normalises all devices together")
        return
    ranks, parts = made.facts.ranks, made.given.get("accumulate", 1)
    if "accumulate" in made.made:
        parts = made["accumulate"]
    images = made["batch_size"] // parts // ranks

    def fits(groups: int) -> bool:
        mine = max(1, groups // ranks)  # of a device
        even = (groups <= ranks or groups % ranks == 0) and images % mine == 0
        return even and images >= 16 * mine

    groups = next((many for many in (4, 3, 2) if fits(many)), 1)
    why = "16 images or more in each group of ShuffleBN"
    made.pick("contrast.norm_groups", groups, why if groups > 1 else "there are few images for it")


def shipped_recipe(method: str, large: bool) -> str | None:
    """The name of a method's recipe for a large network and long training, or for small ones."""
    names = [f"imagenet_{method}_{epochs}ep" for epochs in (100, 200)]
    names = names if large else [f"tinyimagenet_{method}_15min"]
    return next((name for name in names if name in list_recipes()), None)


def is_large(made: Choices) -> bool:
    """Whether the network has as many channels as the paper's ResNet-50, or more."""
    deep = str(made["backbone"]).startswith(
        ("resnet50", "resnet101", "resnet152", "resnext", "wide")
    )
    return deep and ("width" not in made.made or int(made["width"]) >= STOCK)


def choose_by_recipe(made: Choices) -> None:
    """Head, views and optimiser of another method: those of its shipped recipes, if there are."""
    sizes, training = (
        shipped_recipe(made["method"], large) for large in (is_large(made), is_long(made))
    )
    if sizes is None or training is None:
        return
    recipe, trained = read_recipe(sizes), read_recipe(training)
    for group in ("options", "head", "contrast", "teacher", "views"):
        for key, value in dotted({group: recipe.get(group, {})}).items():
            if key == "contrast.norm_groups":
                choose_groups(made)
            elif key == "contrast.queue" and value > made.images:
                made.pick(key, power_of_two(made.images), "no more than there are images")
            elif key != "views.small_size":  # by default it follows the image size
                made.pick(key, value, f"as in {sizes}")
    for key, value in dotted({"optim": trained["optim"]}).items():
        made.pick(key, value, f"as in {training}")
    made.pick("optim.lr_batch_size", trained["batch_size"], "the rate is for this batch")
    choose_warmup(made)


def choose_optimiser(made: Choices) -> None:
    """Optimiser, learning rate, warm-up, and the k-NN probe."""
    method, epochs = made["method"], made["epochs"]
    if made.facts.labelled:
        every = max(1, epochs // 4)
        made.pick("knn.every", every, "labels are at hand: k-NN four times; never for training")
    usual = "sgd" if made.facts.batch_norm else "adamw"
    if made.given.get("optim.name", usual) == "adamw":
        choose_adamw(made)
        return
    if method not in TUNED:
        return
    contrastive, batch = method in ("lewel_m", "moco_v2"), made["batch_size"]
    long = is_long(made)
    lars = long and not contrastive
    why = "the paper's" if lars else "the paper's for MoCo v2" if long else "short training"
    made.pick("optim.name", "lars" if lars else "sgd", why)
    why = "twice the paper's, as it does on 100 classes; in proportion to the batch"
    if made["optim.name"] == "lars":
        rate, base, decay = 3.6, 512, 1e-6
    elif long and contrastive:
        rate, base, decay = 0.12, 256, 1e-4
    else:
        rate, base, decay = TUNED[method], 64, 1e-4
        why = "a search on Tiny-ImageNet-100; in proportion to the batch"
    made.pick("optim.lr", round(rate * min(batch, 4 * base) / base, 4), why)
    made.pick("optim.lr_batch_size", batch, "the rate is for this batch")
    made.pick("optim.weight_decay", decay, "the paper's" if decay < 1e-5 else "the usual one")
    if long and contrastive:
        made.pick("optim.exclude_bias_and_norm", False, "the paper's for MoCo v2")
    choose_warmup(made)


def choose_adamw(made: Choices) -> None:
    """AdamW: for networks without batch norm, and where it is given."""
    rate, decay = (0.002, 0.01) if made.facts.batch_norm else (5e-4, 0.05)
    why = "tried on scenes" if made.facts.batch_norm else "usual for transformers"
    made.pick("optim.name", "adamw", "the network has no batch norm, as transformers")
    made.pick("optim.lr", rate, f"{why}; not searched")
    made.pick("optim.lr_batch_size", made["batch_size"], "the rate is for this batch")
    made.pick("optim.weight_decay", decay, f"{why}; not searched")
    choose_warmup(made)


def choose_warmup(made: Choices) -> None:
    """Short: 0.2 epochs as in the small recipes, 5 steps or more. Long: the paper's 10 epochs.

    A twentieth of the training at most; for AdamW always.
    """
    twentieth = (float(made["epochs"]) / 20, "a twentieth of the training")
    if made["optim.name"] == "adamw":
        usual = twentieth
    elif is_long(made):
        usual = (10.0, "the paper's for LEWEL_B")
    else:
        steps = 5 * made["batch_size"] / made.images
        usual = max((0.2, "as in the small recipes"), (steps, "5 steps at least"))
    epochs, why = min(usual, twentieth)
    made.pick("optim.warmup_epochs", round(epochs, 3), why)


def choose_views(made: Choices) -> None:
    """Views of small images, and MoCo v2's for the contrastive methods."""
    if made["image_size"] < 128:
        made.pick("views.blur", [0.0, 0.0], "blur removes what small images show")
    if made["method"] in ("lewel_m", "moco_v2"):
        made.pick("views.jitter", [0.4, 0.4, 0.4, 0.1], "MoCo v2's")
        made.pick("views.solarise", [0.0, 0.0], "MoCo v2's")
