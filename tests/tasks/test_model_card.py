"""`lewel export --to hub`: a folder that timm loads, with a model card."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from PIL import Image

from lewel.cli.main import run
from lewel.evaluate.results import Results, fingerprint
from lewel.interop.backbones import find_network, open_backbone
from tests.running import tiny_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose network timm can build, with a result of it and one of older weights."""
    out = tmp_path_factory.mktemp("shared") / "my run"
    flags = ("--stem", "imagenet", "--width", "64", "--image-size", "64", "--limit", "8")
    probe = ("--knn.every", "1", "--knn.bank", "16", "--knn.queries", "16")
    assert tiny_run(out, "--epochs", "1", *flags, *probe) == 0
    entry = {"backbone": "resnet10", "data": "sce|nes", "images": 10, "interval": [0.4, 0.6]}
    for weights, top1 in ((fingerprint(out / "backbone.safetensors"), 0.512), ("old", 0.333)):
        result = {**entry, "top1": top1, "k": 20}
        Results(out).keep("knn", {"weights": weights, "data": "scenes"}, result)
    return out


@pytest.fixture(scope="module")
def shared(trained: Path) -> Path:
    assert run(["export", str(trained), "--to", "hub"]) == 0
    return trained / "export" / "hub"


def test_timm_loads_the_folder_with_our_features(trained: Path, shared: Path) -> None:
    images = torch.randn(2, 3, 64, 64)
    net = timm.create_model(f"local-dir:{shared}", pretrained=True).eval()
    with torch.no_grad():
        expected = open_backbone(trained, find_network(trained))(images).mean(1)
        assert torch.allclose(net(images), expected, atol=1e-5)
        classifier = timm.create_model(f"local-dir:{shared}", pretrained=True, num_classes=7)
        assert torch.allclose(
            classifier.eval().forward_features(images).mean((2, 3)), expected, atol=1e-5
        )
        assert classifier(images).shape == (2, 7)
    wanted = timm.data.resolve_model_data_config(net)
    assert wanted["input_size"] == [3, 64, 64] and wanted["crop_pct"] == 0.875
    assert wanted["interpolation"] == "bilinear" and wanted["mean"] == [0.485, 0.456, 0.406]
    config = json.loads((shared / "config.json").read_text())
    assert (config["architecture"], config["num_features"]) == ("resnet18", 512)


def test_the_card_has_training_evaluation_and_maps(shared: Path, tmp_path: Path) -> None:
    text = (shared / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    about: dict[str, Any] = yaml.safe_load(head)
    assert about["library_name"] == "timm" and about["license"] is None
    assert "lewel\\_b" not in head and "lewel_b" in about["tags"]
    for words in ("# my run", "LEWEL\\_B on scenes (8 images", "top-1 51.2%", "40.0-60.0"):
        assert words in body
    assert "33.3%" not in body, "a result of other weights"
    assert "sce\\|nes" in body and "Samples seen | 8 |" in body and "k-NN accuracy" in body
    assert "| Images per second |" in body and "| Training time | about " in body
    assert "(maps.png)" in body and (shared / "maps.png").stat().st_size > 1000
    assert "maps of 8 by 8 locations" in body and "maps over validation images" in body
    assert str(shared.parents[2]) not in text, "a path of this machine"
    code = body.split("```python\n")[1].split("```")[0]
    photo = tmp_path / "photo.png"
    Image.new("RGB", (90, 70), "red").save(photo)
    found: dict[str, Any] = {}
    exec(code.replace("PATH", str(shared)).replace("photo.jpg", str(photo)), found)
    assert found["features"].shape == (1, 512)


def test_the_card_of_images_without_labels_names_them_training_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, out = tmp_path / "photos", tmp_path / "run"
    photos.mkdir()
    for index in range(32):
        Image.new("RGB", (64, 64), (index * 7, 9, 200)).save(photos / f"{index}.png")
    flags = ("--stem", "imagenet", "--width", "64", "--image-size", "64")
    assert tiny_run(out, "--epochs", "1", *flags, data=str(photos)) == 0
    assert run(["export", str(out), "--to", "hub"]) == 0
    assert "maps.png shows images of the training set" in capsys.readouterr().out
    assert "maps over training images" in (out / "export/hub/README.md").read_text()


def test_an_edited_card_and_other_folders_are_kept(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "resnet.v1"
    command = ["export", str(trained), "--to", "hub", "--out", str(out)]
    assert run(command) == 0
    (out / "README.md").write_text("mine")
    capsys.readouterr()
    assert run(command) == 0
    assert "was edited and is kept" in capsys.readouterr().out
    assert (out / "README.md").read_text() == "mine"
    (out / "README.md").unlink()
    assert run(command) == 0 and "# my run" in (out / "README.md").read_text()
    other = tmp_path / "project"
    other.mkdir()
    (other / "README.md").write_text("another project")
    assert run([*command[:-1], str(other)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert [file.name for file in other.iterdir()] == ["README.md"]


def test_weights_that_are_no_run_have_a_short_card(tmp_path: Path) -> None:
    flags = ["--random-init", "--image-size", "64", "--out", str(tmp_path / "hub")]
    assert run(["export", "resnet10", "--to", "hub", *flags]) == 0
    text = (tmp_path / "hub" / "README.md").read_text()
    assert "resnet10, randomly initialised." in text and "No evaluation is recorded." in text
    assert "## Training" not in text and not (tmp_path / "hub" / "maps.png").exists()
