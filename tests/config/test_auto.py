"""The rules that choose settings: they fit the data, and never choose what can't learn."""

from dataclasses import replace
from typing import Any

import pytest

from lewel.config.auto import choose, warnings
from lewel.config.auto_choices import Facts
from lewel.config.auto_length import steps_of, with_speed
from lewel.config.auto_method import TUNED, shipped_recipe
from lewel.config.configure import configure
from lewel.config.methods import taken, typed_options, without_unused
from lewel.config.recipes import list_recipes, read_recipe
from lewel.config.resolve import resolve
from lewel.config.sizes import check_groups
from lewel.errors import UserError
from lewel.methods.registry import find_method, method_names

LAPTOP = Facts(images=2_000, side=256, labelled=False, device="cpu", memory=8 * 10**9, cores=4)
NODE = Facts(
    images=1_281_167,
    side=375,
    labelled=True,
    device="cuda",
    memory=32 * 10**9,
    cores=12,
    ranks=8,
    bf16=True,
)


@pytest.mark.parametrize(
    "base",
    [
        LAPTOP,
        replace(LAPTOP, ranks=2),
        replace(LAPTOP, ranks=3),
        NODE,
        replace(NODE, ranks=3),
        replace(NODE, ranks=1, bf16=False),
    ],
)
def test_every_choice_is_a_configuration_that_learns(base: Facts) -> None:
    sides, images = (20, 100, 4_000), (50, 64, 200, 1_000, 25_000, 300_000, 5_000_000)
    for facts in (replace(base, images=n, side=side) for n in images for side in sides):
        made = choose(facts, {})
        config = configure("scenes", made.nested(), {})
        share = config.batch_size // facts.ranks
        assert config.batch_size <= facts.images
        assert share * facts.ranks == config.batch_size and share >= 2
        if config.method == "lewel_m":
            check_groups(config, facts.ranks)
            assert config.contrast.queue <= facts.images
        assert steps_of(made) >= 2_000
        assert config.optim.warmup_epochs < config.epochs
        assert all(choice.because for choice in made.made.values())


@pytest.mark.parametrize(
    ("ranks", "given", "groups"),
    [
        (1, {}, 4),
        (2, {}, 4),
        (1, {"batch_size": 50}, 2),
        (1, {"batch_size": 70}, 2),
        (2, {"batch_size": 96}, 4),
        (1, {"accumulate": 4}, 1),
        (1, {"accumulate": 2, "method": "densecl"}, 2),
    ],
)
def test_shufflebn_groups_share_a_micro_batch_evenly(
    ranks: int, given: dict[str, Any], groups: int
) -> None:
    made = choose(replace(LAPTOP, ranks=ranks), given)
    config = configure("scenes", made.nested(), given)
    check_groups(config, ranks)
    assert config.contrast.norm_groups == groups


def test_sync_bn_has_no_groups() -> None:
    made = choose(replace(LAPTOP, ranks=2), {"sync_batch_norm": True})
    assert made["contrast.norm_groups"] == 1
    assert choose(LAPTOP, {"sync_batch_norm": True})["contrast.norm_groups"] == 4  # one device
    check_groups(configure("scenes", made.nested(), {"sync_batch_norm": True}), 2)


@pytest.mark.parametrize("base", [LAPTOP, NODE])
@pytest.mark.parametrize("ranks", [12, 64, 256])
def test_many_devices_have_images_enough_for_their_batch_norms(base: Facts, ranks: int) -> None:
    made = choose(replace(base, ranks=ranks, images=1_281_167), {})
    assert 16 <= made["batch_size"] // ranks <= 64
    assert made["epochs"] <= 100 and steps_of(made) >= 2_000
    assert base is LAPTOP or made["method"] == "lewel_b"


def test_fewer_steps_of_a_larger_batch_are_as_long() -> None:
    for batch in (256, 1024, 4096):
        assert choose(NODE, {"batch_size": batch})["method"] == "lewel_b"


@pytest.mark.parametrize("base", [LAPTOP, NODE])
@pytest.mark.parametrize("stem", ["small", "medium", "imagenet"])
@pytest.mark.parametrize("side", [20, 40, 64, 100, 500])
def test_a_given_stem_gets_images_of_four_by_four_locations(
    base: Facts, stem: str, side: int
) -> None:
    made = choose(replace(base, side=side), {"stem": stem})
    assert made["image_size"] >= 4 * {"small": 8, "medium": 16, "imagenet": 32}[stem]
    assert made["stem"] == stem


def test_a_given_image_size_has_a_true_reason() -> None:
    made = choose(LAPTOP, {"image_size": 16})
    assert made.made["stem"].because == "gives the finest maps"
    assert "4 x 4" in choose(LAPTOP, {}).made["stem"].because
    for small in ({"stem": "medium"}, {"backbone": "timm/resnet18"}):
        assert "4 x 4" in choose(replace(LAPTOP, side=40), small).made["image_size"].because


def test_what_can_hardly_be_learned_from_is_warned_of() -> None:
    tiny = replace(LAPTOP, side=4)
    assert "4 px or fewer" in " ".join(warnings(choose(tiny, {})))
    queue = {"contrast": {"queue": 100_000}}
    found = " ".join(warnings(choose(LAPTOP, queue)))
    assert warnings(choose(LAPTOP, {"contrast": {"queue": None}})) == warnings(choose(LAPTOP, {}))
    assert "100,000 keys" in found and "--contrast.queue 1024 or less" in found


def test_a_narrow_network_is_not_trained_in_a_layout_that_is_unsafe() -> None:
    given = {"width": 8, "stem": "small"}
    assert not configure("scenes", choose(LAPTOP, given).nested(), given).channels_last
    assert choose(LAPTOP, {"width": 8})["channels_last"]


def test_a_given_optimiser_has_its_own_rate() -> None:
    days = replace(NODE, ranks=1)
    for facts, name, rate, base in ((LAPTOP, "lars", 3.6, 512), (days, "sgd", 0.15, 64)):
        made = choose(facts, {"method": "lewel_b", "optim": {"name": name}})
        assert made["optim.lr"] == pytest.approx(rate * min(made["batch_size"] / base, 4), rel=1e-3)


def test_what_is_given_stays_and_the_rest_follows_it() -> None:
    given: dict[str, Any] = {"method": "byol", "image_size": 96, "optim": {"lr": 0.01}}
    made = choose(LAPTOP, given)
    config = configure("scenes", made.nested(), given)
    assert (config.method, config.image_size, config.optim.lr) == ("byol", 96, 0.01)
    assert made.made["method"].because == "given"
    assert config.stem == "medium"  # follows the image size
    assert "contrast.queue" not in made.made  # byol has none


def test_the_queue_grows_with_the_training() -> None:
    """Its keys are of the last two hundredth; 256 at least, and the paper's number at most."""
    facts = replace(LAPTOP, images=200_000)
    queues = {
        epochs: choose(facts, {"method": "moco_v2", "epochs": epochs})["contrast.queue"]
        for epochs in (1, 4, 50, 1000)
    }
    assert queues == {1: 512, 4: 2_048, 50: 32_768, 1000: 65_536}
    assert choose(replace(LAPTOP, images=300), {"epochs": 1})["contrast.queue"] == 256


@pytest.mark.parametrize("method", TUNED)
def test_the_rate_of_short_training_is_that_of_the_search(method: str) -> None:
    recipe = read_recipe(f"tinyimagenet_{method}_15min")
    made = choose(replace(LAPTOP, images=25_000, side=64), {"method": method})
    assert (made["batch_size"], made["optim.lr"]) == (recipe["batch_size"], recipe["optim"]["lr"])


@pytest.mark.parametrize("images", [0, 1, 49])
def test_too_few_images_are_refused(images: int) -> None:
    many = "is 1 image" if images == 1 else f"are {images} images"
    with pytest.raises(UserError, match=f"There {many}, too few to train on"):
        choose(replace(LAPTOP, images=images), {})


def test_a_budget_decides_epochs_by_the_measured_speed() -> None:
    facts = replace(LAPTOP, budget=3600.0)
    assert choose(facts, {})["epochs"] == 1  # before the trial
    short, long = (choose(with_speed(facts, speed), {}) for speed in (50.0, 200.0))
    assert short["epochs"] == int(0.85 * 3600 * 50 / 2_000)
    assert long["epochs"] == int(0.85 * 3600 * 200 / 2_000)
    fixed = choose(with_speed(facts, 200.0), {"epochs": 3})
    assert fixed["epochs"] == 3


def test_a_budget_below_one_epoch_takes_a_part_of_the_images() -> None:
    facts = replace(LAPTOP, images=1_000_000, budget=600.0, speed=100.0)
    made = choose(facts, {})
    assert (made["epochs"], made["limit"]) == (1, int(0.85 * 600 * 100))
    assert any("steps are few" in sentence for sentence in warnings(made))


@pytest.mark.parametrize(
    ("passes", "epochs", "fraction"),
    [(1.3, 1, 1.0), (1.9, 2, 0.95), (4.3, 4, 1.0), (4.9, 5, 0.98), (70.9, 70, 1.0)],
)
def test_whole_epochs_leave_out_the_fewest_samples(
    passes: float, epochs: int, fraction: float
) -> None:
    facts = replace(LAPTOP, images=10_000, budget=1000.0, speed=passes * 10_000 / 850)
    made = choose(facts, {})
    assert made["epochs"] == epochs
    limit = made["limit"] if "limit" in made.made else 10_000
    assert limit / 10_000 == pytest.approx(fraction, abs=1e-3)
    assert 0.7 < epochs * limit / (passes * 10_000) < 1.001


def test_a_given_limit_is_not_trained_on_for_longer_than_the_budget() -> None:
    facts = replace(LAPTOP, images=10_000, budget=1000.0, speed=1.9 * 10_000 / 850)
    assert choose(facts, {"limit": 10_000})["epochs"] == 1


@pytest.mark.parametrize("key", ["limit", "batch_size"])
def test_images_that_a_budget_has_no_time_for_are_refused(key: str) -> None:
    facts = replace(LAPTOP, images=120, budget=60.0, speed=2.0)
    with pytest.raises(UserError, match=f"fewer than the 110 of --{key.replace('_', '-')}"):
        choose(facts, {key: 110})
    choose(facts, {key: 100})


def test_the_queue_has_no_more_keys_than_a_budget_leaves_images() -> None:
    made = choose(replace(LAPTOP, images=1_000, budget=60.0, speed=2.0), {})
    assert made["limit"] == 102 and made["contrast.queue"] == 64


def test_one_pass_over_few_images_is_no_reason_to_refuse() -> None:
    made = choose(replace(LAPTOP, images=60, budget=100.0, speed=95 / 85), {})
    assert made["epochs"] == 1 and "limit" not in made.made


def test_a_budget_for_fewer_images_than_train_anything_is_refused() -> None:
    with pytest.raises(UserError, match="only 25 images are read"):
        choose(replace(LAPTOP, images=60, budget=60.0, speed=0.5), {})


def test_fewer_images_than_two_a_device_are_refused() -> None:
    assert choose(replace(LAPTOP, images=64, ranks=32), {})["batch_size"] == 64
    with pytest.raises(UserError, match="60 images are too few for 32 devices"):
        choose(replace(LAPTOP, images=60, ranks=32), {})


def test_days_for_few_images_are_not_all_used() -> None:
    made = choose(replace(LAPTOP, images=200, budget=2 * 86400.0, speed=100.0), {})
    assert made["epochs"] == 5_000 and "the budget allows 73,440" in made.made["epochs"].because


def test_reasons_are_those_that_decide() -> None:
    """A reason that another rule has overruled would mislead."""
    few = choose(replace(LAPTOP, images=50), {})
    assert (few["contrast.queue"], few["optim.warmup_epochs"]) == (32, 1.6)
    assert "than there are images" in few.made["contrast.queue"].because
    for facts, given, epochs, why in (
        (replace(LAPTOP, images=50), {}, 1.6, "5 steps at least"),
        (LAPTOP, {}, 0.2, "as in the small recipes"),
        (replace(LAPTOP, images=5_000_000), {}, 0.05, "a twentieth of the training"),
        (replace(NODE, images=1_300_000, ranks=1), {}, 5.0, "a twentieth of the training"),
        (replace(NODE, images=100_000, ranks=1), {}, 10.0, "the paper's for LEWEL_B"),
        (LAPTOP, {"optim.name": "adamw"}, 6.5, "a twentieth of the training"),
        (LAPTOP, {"method": "simclr"}, 0.2, "as in the small recipes"),
    ):
        warmup = choose(facts, given).made["optim.warmup_epochs"]
        assert (warmup.value, warmup.because) == (epochs, why)
    assert "1/200" in choose(LAPTOP, {}).made["contrast.queue"].because
    assert "--budget changes it" in few.made["width"].because
    many = choose(replace(LAPTOP, images=5_000_000), {})
    assert (many["epochs"], many["teacher.statistics"]) == (1, "eman")
    assert many.made["epochs"].because == "one pass over all images"
    assert choose(LAPTOP, {"method": "lewel_b"})["teacher.statistics"] == "ema"
    assert "contrast.queue" not in choose(LAPTOP, {"contrast.negatives": "batch"}).made
    dense = choose(replace(LAPTOP, images=50), {"method": "densecl"})
    assert dense["contrast.queue"] == 32
    assert dense.made["contrast.queue"].because == "no more than there are images"
    for images, epochs, why in (
        (200, 1_000, "the most that are chosen"),
        (100_000, 257, "about 100,000 steps"),
        (1_300_000, 100, "the fewest that are chosen"),
    ):
        long = choose(replace(NODE, images=images, ranks=1), {})
        assert (long["epochs"], long.made["epochs"].because) == (epochs, why)
    for budget, flag in ((None, "--epochs."), (600.0, "--budget.")):
        facts = replace(LAPTOP, budget=budget, speed=1.0)
        (words, *_) = warnings(choose(facts, {} if budget else {"epochs": 1}))
        assert words.endswith(flag)


def test_a_network_of_timm_has_no_stem_and_a_transformer_gets_adamw() -> None:
    given = {"backbone": "timm/vit_tiny_patch16_224"}
    made = choose(replace(LAPTOP, batch_norm=False), given)
    config = configure("scenes", made.nested(), given)
    assert not {"stem", "width"} & made.made.keys()
    assert (config.image_size, config.optim.name, config.optim.lr) == (128, "adamw", 5e-4)
    given = {"backbone": "timm/resnetv2_50"}
    assert choose(LAPTOP, given)["optim.name"] == "sgd"
    other = choose(replace(LAPTOP, batch_norm=False), {**given, "method": "simsiam"})
    assert other["optim.name"] == "adamw"
    assert choose(LAPTOP, {"optim": {"name": "adamw"}})["optim.lr"] == 0.002
    given = {"backbone": "timm/vit_tiny_patch16_224", "optim": {"name": "sgd"}}
    assert choose(replace(LAPTOP, batch_norm=False), given)["optim.lr"] == 0.04


def test_more_time_gives_a_larger_network() -> None:
    widths = [
        choose(replace(LAPTOP, budget=60.0 * minutes, speed=100.0), {})["width"]
        for minutes in (10, 60, 600)
    ]
    assert widths == sorted(widths) and widths[0] < widths[-1]


def test_long_training_is_the_papers() -> None:
    made = choose(NODE, {})
    config = configure("scenes", made.nested(), {})
    assert (config.method, config.backbone, config.image_size) == ("lewel_b", "resnet50", 224)
    assert (config.optim.name, config.epochs, config.precision) == ("lars", 100, "bf16-mixed")
    moco = configure("scenes", choose(NODE, {"method": "lewel_m"}).nested(), {})
    assert moco.optim.name == "sgd" and not moco.optim.exclude_bias_and_norm
    assert choose(NODE, {"backbone": "resnet101"})["head.hidden"] == 4096
    narrow = choose(LAPTOP, {"backbone": "resnet50"})  # of width 16
    assert (narrow["width"], narrow["head.hidden"]) == (16, 512)


def test_published_weights_decide_the_network() -> None:
    init: dict[str, str | int] = {"backbone": "resnet50", "stem": "imagenet", "width": 64}
    made = choose(replace(LAPTOP, init=init), {"init": "torchvision/resnet50"})
    assert [made[key] for key in ("backbone", "stem", "width", "image_size")] == [
        "resnet50",
        "imagenet",
        64,
        128,  # a CPU
    ]
    assert choose(replace(NODE, init=init), {"init": "timm/resnet50"})["image_size"] == 224
    assert not any("published" in sentence for sentence in warnings(made))
    for facts, name in ((LAPTOP, "resnet18"), (replace(NODE, images=2_000), "resnet50")):
        assert any(f"--init timm/{name}." in sentence for sentence in warnings(choose(facts, {})))


@pytest.mark.parametrize("method", sorted(set(method_names()) - set(TUNED)))
def test_other_methods_have_the_settings_of_their_recipes(method: str) -> None:
    if f"tinyimagenet_{method}_15min" not in list_recipes():
        pytest.skip("a method of another package")
    name = "hidden" if "head.hidden" in taken(find_method(method)) else "dim"
    given: dict[str, Any] = {"method": method, "head": {name: 77}}
    made = choose(LAPTOP, given)
    config = configure("scenes", made.nested(), given)
    recipe = resolve(read_recipe(f"tinyimagenet_{method}_15min"), {})
    head = without_unused(recipe).head.model_copy(update={name: 77})
    assert (config.head.hidden, config.head.dim) == (head.hidden, head.dim)
    assert config.options == typed_options(recipe).options
    assert (config.optim.name, config.optim.lr) == (recipe.optim.name, recipe.optim.lr)
    assert config.optim.lr_batch_size == recipe.batch_size
    long = configure("scenes", choose(NODE, {"method": method}).nested(), {"method": method})
    paper = without_unused(resolve(read_recipe(shipped_recipe(method, large=True) or ""), {}))
    assert (long.head, long.optim.name, long.optim.lr) == (
        paper.head,
        paper.optim.name,
        paper.optim.lr,
    )


def test_a_method_of_another_package_keeps_its_own_settings() -> None:
    made = choose(LAPTOP, {"method": "toy"})
    assert made["method"] == "toy"
    assert not any(key.startswith(("head", "optim", "teacher")) for key in made.made)
