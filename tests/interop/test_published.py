"""Published weights by name, without a network."""

from pathlib import Path
from unittest.mock import Mock, create_autospec
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file
from timm import create_model
from timm.data import resolve_model_data_config
from torchvision.models import resnet18

from lewel.config.build import build_method, load_initial
from lewel.config.configure import configure
from lewel.config.evaluate import KnnConfig
from lewel.errors import UserError
from lewel.interop.backbones import find_network
from lewel.interop.published import colours_of, fetch, find_published
from lewel.nn.backbone import MEAN, STD
from lewel.tasks.evaluator import Evaluator
from lewel.tasks.pretrain_parts import Parts, warnings
from lewel.tasks.results import wrongly_normalised


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))

    def refuse(*_: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)


@pytest.mark.parametrize(
    ("name", "backbone", "file"),
    [
        ("torchvision/resnet50", "resnet50", "resnet50-11ad3fa6.pth"),
        ("timm/resnet50.a1_in1k", "resnet50", "resnet50.a1_in1k.safetensors"),
        (
            "timm/convnext_tiny.fb_in1k",
            "timm/convnext_tiny",
            "convnext_tiny.fb_in1k.safetensors",
        ),
    ],
)
def test_a_name_is_a_network_and_a_file(name: str, backbone: str, file: str) -> None:
    found = find_published(name)
    assert found is not None
    assert (found.settings["backbone"], found.file) == (backbone, file)


@pytest.mark.filterwarnings("ignore:Mapping deprecated model name")
@pytest.mark.parametrize(
    "name",
    [
        *("vit_tiny_patch16_224", "vit_base_patch16_clip_224.openai", "convnext_atto", "resnet18"),
        "vit_tiny_patch16_224_in21k",  # a deprecated name
    ],
)
def test_images_are_normalised_as_the_weights_were_trained(name: str) -> None:
    wanted = resolve_model_data_config(create_model(name))
    network = find_network(f"timm/{name}")
    assert (network.mean, network.std) == (wanted["mean"], wanted["std"])
    assert colours_of(f"timm/{name}") == (wanted["mean"], wanted["std"])


@pytest.mark.parametrize(
    ("name", "expected"), [("timm/vit_tiny_patch16_224", 1), ("timm/resnet18.a1_in1k", 0)]
)
def test_weights_that_expect_other_colours_say_so(name: str, expected: int) -> None:
    given = {"init": name, "backbone": "resnet18", "image_size": 64, "optim": {"warmup_epochs": 1}}
    parts = create_autospec(Parts)
    parts.config = configure("scenes", "paper", given)
    parts.fabric, parts.plan = Mock(device=torch.device("cpu")), Mock(steps=10_000)
    parts.method = Mock(about=Mock(in_batch=False), remarks=lambda *_: [])
    said = [line for line in warnings(parts) if "normalised by mean 0.5 0.5 0.5, std 0.5" in line]
    assert len(said) == expected


def test_other_colours_are_another_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = KnnConfig(data="scenes", limit=200, accelerator="cpu")
    for name, known in (("vit_tiny_patch16_224", True), ("convnext_atto", False)):
        evaluator = Evaluator(f"timm/{name}", config, None)
        assert ("colours" in evaluator.settings()) == known
        without = {k: v for k, v in evaluator.settings().items() if k != "colours"}
        assert (wrongly_normalised(without) != "") == known  # as version 0.1 wrote it
        assert wrongly_normalised(evaluator.settings()) == ""


@pytest.mark.parametrize("name", ["resnet50", "torchvision/resnet50", "timm/none", "runs/photos"])
def test_all_else_is_normalised_as_imagenet(name: str) -> None:
    assert colours_of(name) == (MEAN, STD)


@pytest.mark.parametrize("name", ["runs/photos", "resnet50.pth", "timm", "./torchvision"])
def test_other_names_are_paths(name: str) -> None:
    assert find_published(name) is None


def test_offline_the_sentence_names_file_and_place(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        fetch("timm/resnet18.a1_in1k")
    place = tmp_path / "checkpoints" / "resnet18.a1_in1k.safetensors"
    assert f"put it at {place}" in str(error.value) and "no route to host" in str(error.value)
    assert "timm/resnet18.a1_in1k/resolve/main/model.safetensors" in str(error.value)
    assert not place.exists()


def test_a_file_in_its_place_is_loaded_into_student_and_teacher(tmp_path: Path) -> None:
    weights = resnet18().state_dict()
    (tmp_path / "checkpoints").mkdir()
    save_file(
        {k: v.contiguous() for k, v in weights.items()},
        tmp_path / "checkpoints" / "resnet18.a1_in1k.safetensors",
    )
    given = {"backbone": "resnet18", "image_size": 64, "init": "timm/resnet18.a1_in1k"}
    config = configure("scenes", "paper", given)
    assert config.init == "timm/resnet18.a1_in1k"  # by its name, not a path
    method = build_method(config, 100)
    load_initial(method, config.init)
    for network in (method.student, method.teacher.network):  # type: ignore[union-attr]
        assert torch.equal(network.backbone.net.conv1.weight, weights["conv1.weight"])
