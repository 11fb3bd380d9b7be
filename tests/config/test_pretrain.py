"""Recipes, flags and what is said of wrong ones."""

from pathlib import Path

import pytest
import torch
import yaml

from lewel.config import build
from lewel.config.evaluate import SegmentConfig
from lewel.config.identity import differences
from lewel.config.methods import as_recipe, typed_options
from lewel.config.pretrain import PretrainConfig
from lewel.config.recipes import list_recipes, read_recipe
from lewel.config.resolve import read_config, resolve
from lewel.config.settings import flat, read_yaml, write_yaml
from lewel.data.sources.open import open_data
from lewel.errors import UserError
from lewel.evaluate.knn_probe import KnnProbe
from lewel.interop.backbones import build_backbone
from lewel.methods.registry import method_names
from lewel.train.devices import placement


def test_flags_override_the_recipe_key_by_key() -> None:
    recipe = {"epochs": 5, "batch_size": 64, "optim": {"lr": 0.1, "name": "sgd"}}
    config = resolve(recipe, {"optim": {"lr": 0.3}, "epochs": 7})
    assert (config.epochs, config.optim.lr, config.optim.name) == (7, 0.3, "sgd")


def test_lr_is_for_the_recipes_batch() -> None:
    config = resolve({"batch_size": 64, "optim": {"lr": 0.1}}, {"batch_size": 128})
    assert config.optim.lr_batch_size == 64


@pytest.mark.parametrize("size", [96, 128])
def test_the_layout_follows_a_fixed_rule(size: int) -> None:
    assert resolve({}, {"image_size": size}).channels_last is (size >= 128)


def test_narrow_networks_on_large_maps_are_not_channels_last() -> None:
    narrow = {"backbone": "resnet10", "width": 8, "stem": "small"}
    assert resolve(narrow, {"image_size": 128}).channels_last is False
    with pytest.raises(UserError, match=r"width 8 with maps of 64 px.*--no-channels-last"):
        resolve(narrow, {"image_size": 64, "channels_last": True})
    assert resolve(narrow, {"image_size": 32, "channels_last": True}).channels_last
    assert resolve({**narrow, "width": 16}, {"image_size": 128}).channels_last


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metod": "byol"}, "Unknown key 'metod' (value 'byol'). Did you mean 'method'?"),
        ({"optim": {"ler": 1}}, "Did you mean 'optim.lr'?"),
        ({"epochs": 0}, "epochs is 0, but input should be greater than or equal to 1"),
        ({"batch_size": "many"}, "change it with --batch-size"),
        (
            {"method": "moco_v9"},
            f"there is no method 'moco_v9': choose {', '.join(method_names())}",
        ),
        ({"batch_size": 9, "accumulate": 2}, "not a multiple of accumulate 2"),
        ({"batch_size": 4, "accumulate": 4}, "at least 2 images in a micro-batch"),
        ({"views": {"crop_scale": [0.9, 0.1]}}, "two rising positive numbers, not 0.9 0.1"),
        ({"views": {"crop_scale": [0.5, 2]}}, "at most 1, not 2"),
        ({"views": {"jitter": [0.4, 0.4, 0.2, 0.7]}}, "hue"),
        ({"head": 3}, "head"),
        ({"optim": [1]}, "optim"),
    ],
)
def test_a_wrong_value_is_one_sentence(given: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(given, {})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_identity_leaves_out_what_may_change() -> None:
    one = resolve({}, {"epochs": 5})
    same = resolve({}, {"epochs": 9, "workers": 3, "log_every": 2, "knn": {"every": 1}})
    other = resolve({}, {"epochs": 3, "seed": 1, "optim": {"lr": 2.0}})
    assert differences(one, same) == []
    assert set(differences(one, other)) == {
        "epochs: 5 -> 3",
        "seed: 0 -> 1",
        "optim.lr: 1.8 -> 2.0",
    }


def test_config_yaml_is_a_recipe(tmp_path: Path) -> None:
    config = resolve({}, {"views": {"blur": (0.5, 0.5)}, "seed": 3})
    write_yaml(as_recipe(config), tmp_path / "config.yaml")
    assert "contrast" not in read_yaml(tmp_path / "config.yaml")  # lewel_b has no use for it
    assert read_config(tmp_path / "config.yaml") == config


def test_the_defaults_are_the_papers_lewel_b() -> None:
    values = flat(PretrainConfig())
    assert values["optim.lr"] == 1.8
    assert (values["batch_size"], values["optim.weight_decay"]) == (512, 1e-6)
    assert (values["teacher.momentum"], values["teacher.schedule"]) == (0.98, "cosine")
    assert [values[f"head.{k}"] for k in ("dim", "hidden", "aligned_dim")] == [256, 4096, None]
    assert (values["head.groups"], values["head.aligned_weight"]) == (4, 0.5)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_parses_and_says_what_it_is(name: str) -> None:
    resolve(read_recipe(name), {})
    assert len(list_recipes()[name]) > 20


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`lewel recipes` lists, or a YAML file\.$"):
        read_recipe("nothing")
    with pytest.raises(UserError, match=r"Did you mean .*scenes_demo"):
        read_recipe("scene_demo")
    with pytest.raises(UserError, match=r"none\.yaml does not exist"):
        read_recipe(str(tmp_path / "none.yaml"))
    (tmp_path / "list.yaml").write_text(yaml.safe_dump([1, 2]))
    with pytest.raises(UserError, match="holds list"):
        read_recipe(str(tmp_path / "list.yaml"))
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        read_recipe(str(tmp_path / "broken.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "epochs: 010",
            "epochs (--epochs): expected a number that does not begin with 0, not '010'",
        ),
        ("seed: yes", "seed is 'yes', but"),
        ("seed: true", "seed (--seed): expected a number, not True"),
        ("optim: {lr: true}", "optim.lr (--optim.lr): expected a number, not True"),
        ("views: {crop_scale: [true, 1]}", "expected a number, not True"),
        ("batch_size: 1:30", "batch_size is '1:30', but"),
        ("batch_size: 1_0:30.5", "batch_size is '1_0:30.5', but"),
    ],
)
def test_a_word_is_no_number(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        resolve(read_recipe(str(tmp_path / "mine.yaml")), {})
    assert said in str(caught.value)


def test_a_switch_is_no_learning_rate_or_option() -> None:
    with pytest.raises(ValueError, match="expected a number, not True"):
        SegmentConfig.model_validate({"data": "masks", "lr": True})
    config = resolve({"method": "densecl", "options": {"dense_weight": True}}, {})
    with pytest.raises(UserError, match=r"dense_weight is True, but expected a number, not True"):
        typed_options(config)


def test_plain_words_of_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "data: 2024-01-01\nseed: 0x1F\nepochs: 1_000\ncompile: yes\nchannels_last: ~\n"
        "cudnn_benchmark: off\noptim: {lr: 1e-4, weight_decay: 1.0e-4, warmup_epochs: 0}\n"
    )
    config = resolve(read_recipe(str(file)), {})
    assert (config.data, config.seed, config.epochs) == ("2024-01-01", 31, 1000)
    assert config.compile and not config.cudnn_benchmark
    assert (config.optim.lr, config.optim.weight_decay) == (1e-4, 1e-4)
    odd = ["1e5", "010", "yes", "1:30", "0o7", "1_0", "null", "~", "1.5", "=", "<<", "2024-01-01"]
    values = [*odd, 1e-7, 1e30, -3, 0, 0.5, True, None]
    write_yaml({"a": values}, file)
    assert read_yaml(file) == {"a": values}


def test_a_recipe_that_is_nested_too_deep(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("a: " + "[" * 20_000)
    with pytest.raises(UserError, match=r"deep\.yaml is nested too deep: expected keys"):
        read_recipe(str(tmp_path / "deep.yaml"))


@pytest.mark.parametrize(("workers", "reading"), [(None, 4), (0, 0), (1, 4), (6, 6)])
def test_all_cores_read_for_the_probe(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, reading: int
) -> None:
    monkeypatch.setattr("lewel.train.devices.cores", lambda devices: 4)
    config = resolve({"data": "scenes", "image_size": 32}, {"workers": workers})
    data, backbone = open_data("scenes", image_size=32), build_backbone("resnet10", "small", 8, 32)
    place = placement(1, 1)
    probe = build.build_probe(config, data, backbone, torch.device("cpu"), place)
    assert isinstance(probe, KnnProbe) and probe.extractor.workers == reading
