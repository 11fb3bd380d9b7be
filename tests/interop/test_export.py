"""Exports hold the trained weights, with the names and settings of other libraries."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor
from torchvision import models

from lewel.cli.main import run
from lewel.interop import export as names
from lewel.interop.backbones import find_network, open_backbone
from lewel.nn.backbone import build_resnet
from tests.conftest import randomise_statistics
from tests.running import tiny_run

STATISTICS = ("weight", "bias", "running_mean", "running_var")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a small stem, which only graphs support."""
    out = tmp_path_factory.mktemp("exported") / "run"
    assert tiny_run(out, "--epochs", "1") == 0
    return out


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, models.ResNet]:
    """torchvision's ResNet-18 as a third-party checkpoint, and the network."""
    net = models.resnet18(num_classes=5)
    randomise_statistics(net)
    torch.save({"state_dict": net.state_dict()}, tmp_path / "theirs.pth")
    net.fc = torch.nn.Identity()
    return tmp_path / "theirs.pth", net.eval()


def resnet50_names() -> dict[str, str]:
    """detectron2's name of every tensor of a ResNet-50 -> torchvision's, block by block."""
    pairs = {"stem.conv1": ("conv1", "bn1")}
    for stage, depth in enumerate((3, 4, 6, 3), start=1):
        for block in range(depth):
            there, here = f"res{stage + 1}.{block}", f"layer{stage}.{block}"
            for conv in (1, 2, 3):
                pairs[f"{there}.conv{conv}"] = (f"{here}.conv{conv}", f"{here}.bn{conv}")
        pairs[f"res{stage + 1}.0.shortcut"] = (
            f"layer{stage}.0.downsample.0",
            f"layer{stage}.0.downsample.1",
        )
    found = {}
    for there, (conv, norm) in pairs.items():
        found[f"{there}.weight"] = f"{conv}.weight"
        found |= {f"{there}.norm.{kind}": f"{norm}.{kind}" for kind in STATISTICS}
    return found


def test_detectron2_gets_the_265_tensors_of_a_resnet_50_under_its_names() -> None:
    with torch.device("meta"):
        tensors = build_resnet("resnet50").state_dict()
    expected = resnet50_names()
    found = names.to_detectron2(tensors)
    assert len(found) == len(expected) == 265
    assert found.keys() == expected.keys()
    assert all(found[there] is tensors[here] for there, here in expected.items())
    back = names.from_detectron2(found)
    assert {n for n in tensors if "num_batches" not in n} == back.keys()
    assert all(back[name] is tensors[name] for name in back)


def detectron2_forward(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """A ResNet of basic blocks, computed from detectron2's names only."""

    def conv(name: str, x: Tensor, stride: int) -> Tensor:
        weight = weights[f"{name}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        scale, shift, mean, var = (weights[f"{name}.norm.{kind}"] for kind in STATISTICS)
        return F.batch_norm(x, mean, var, scale, shift, eps=1e-5)

    x = F.max_pool2d(conv("stem.conv1", x, 2).relu(), 3, 2, 1)
    for stage in (2, 3, 4, 5):
        for block in (0, 1):
            name, stride = f"res{stage}.{block}", 2 if stage > 2 and block == 0 else 1
            y = conv(f"{name}.conv2", conv(f"{name}.conv1", x, stride).relu(), 1)
            skip = f"{name}.shortcut"
            x = (y + (conv(skip, x, stride) if f"{skip}.weight" in weights else x)).relu()
    return x.mean((2, 3))


def test_detectron2s_file_and_config(checkpoint: tuple[Path, models.ResNet]) -> None:
    file, net = checkpoint
    out = file.parent / "d2"
    assert run(["export", str(file), "--to", "detectron2", "--out", str(out)]) == 0
    content = torch.load(out / "detectron2.pth", weights_only=True)
    assert content.keys() == {"model", "__author__", "matching_heuristics"}
    assert content["matching_heuristics"] is True
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = detectron2_forward(content["model"], images)
        assert torch.allclose(features, net(images), atol=1e-5)
    config = yaml.safe_load((out / "detectron2.yaml").read_text())
    assert config == {
        "VERSION": 2,
        "MODEL": {
            "WEIGHTS": str(out / "detectron2.pth"),
            "PIXEL_MEAN": [123.675, 116.28, 103.53],
            "PIXEL_STD": [58.395, 57.12, 57.375],
            "BACKBONE": {"FREEZE_AT": 0},
            "RESNETS": {
                "DEPTH": 18,
                "STRIDE_IN_1X1": False,
                "NORM": "SyncBN",
                "RES2_OUT_CHANNELS": 64,
            },
        },
        "INPUT": {"FORMAT": "RGB"},
    }


def test_mmsegs_file_and_config(checkpoint: tuple[Path, models.ResNet]) -> None:
    file, net = checkpoint
    out = file.parent / "mm.pth"
    assert run(["export", str(file), "--to", "mmseg", "--out", str(out)]) == 0
    content = torch.load(out, weights_only=True)
    state = net.state_dict()
    assert content.keys() == {"state_dict"} and content["state_dict"].keys() == state.keys()
    assert all(torch.equal(content["state_dict"][name], state[name]) for name in state)
    settings: dict[str, Any] = {}
    exec(out.with_suffix(".py").read_text(), settings)
    model = settings["model"]
    assert model["data_preprocessor"] == {
        "mean": [123.675, 116.28, 103.53],
        "std": [58.395, 57.12, 57.375],
        "bgr_to_rgb": True,
    }
    expected = {"type": "ResNet", "depth": 18, "style": "pytorch"}
    expected |= {"norm_eval": False, "frozen_stages": -1}
    expected |= {"init_cfg": {"type": "Pretrained", "checkpoint": str(out)}}
    assert model["backbone"] == expected


@pytest.mark.parametrize(
    ("name", "detectron2", "mmseg"),
    [
        ("resnet101", {"DEPTH": 101}, {"type": "ResNet", "depth": 101}),
        (
            "resnext101_32x8d",
            {"DEPTH": 101, "NUM_GROUPS": 32, "WIDTH_PER_GROUP": 8},
            {"type": "ResNeXt", "depth": 101, "groups": 32, "base_width": 8},
        ),
        ("wide_resnet50_2", {"DEPTH": 50, "WIDTH_PER_GROUP": 128}, None),
    ],
)
def test_configs_have_the_architecture(
    name: str, detectron2: dict[str, int], mmseg: dict[str, Any] | None
) -> None:
    colours = ((0.5,) * 3, (0.25,) * 3)
    config = names.detectron2_config(name, Path("w.pth"), *colours)
    found = config["MODEL"]
    assert config["VERSION"] == 2
    assert found["RESNETS"] == {**detectron2, "STRIDE_IN_1X1": False, "NORM": "SyncBN"}
    assert found["PIXEL_MEAN"] == [127.5] * 3 and found["PIXEL_STD"] == [63.75] * 3
    if mmseg is not None:
        backbone = names.mmseg_config(name, Path("w.pth"), *colours)["backbone"]
        assert mmseg.items() <= backbone.items()


def test_onnx_has_the_same_features_and_map_for_any_batch_size(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx
    import onnxruntime

    assert run(["export", str(trained), "--to", "onnx", "--opset", "20"]) == 0
    assert "onnxruntime gives the features" in capsys.readouterr().out
    file = trained / "export" / "onnx.onnx"
    assert [path.name for path in file.parent.iterdir()] == ["onnx.onnx"]  # weights are inside
    backbone = open_backbone(trained, find_network(trained))
    session = onnxruntime.InferenceSession(file)
    assert [value.name for value in session.get_outputs()] == ["features", "feature_map"]
    for count in (1, 5):
        images = torch.randn(count, 3, 16, 16)
        pooled, grid = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            tokens = backbone(images)
        assert np.abs(pooled - backbone.net(images).detach().numpy()).max() < 1e-4
        assert grid.shape == (count, 64, 2, 2)
        assert np.abs(grid.reshape(count, 64, 4).swapaxes(1, 2) - tokens.numpy()).max() < 1e-4
    assert onnx.load(file).opset_import[0].version == 20


def test_unsupported_exports_are_one_message(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without = shutil.ignore_patterns("export")
    trained = shutil.copytree(trained, tmp_path / "run", ignore=without)
    for to in ("torchvision", "timm", "hub", "detectron2", "mmseg"):
        assert run(["export", str(trained), "--to", to]) == 2
        message = capsys.readouterr().err
        assert "not a small stem" in message and "use --to onnx or torch-export" in message
    assert run(["export", str(trained), "--to", "onnx", "--out", "x.pth"]) == 2
    assert "expected .onnx, or a folder" in capsys.readouterr().err
    assert run(["export", str(trained), "--to", "onnx", "--opset", "5"]) == 2
    assert "--opset 5 is not one of" in capsys.readouterr().err
    assert not (trained / "export").exists()
    assert run(["export", "nowhere", "--to", "onnx"]) == 2
    assert "nowhere is not a backbone" in capsys.readouterr().err
    monkeypatch.setattr("lewel.interop.graphs.find_spec", lambda name: None)
    assert run(["export", str(trained), "--to", "onnx"]) == 2
    assert "pip install 'lewel[onnx]'" in capsys.readouterr().err


def test_a_file_that_comes_back_different_is_removed(
    checkpoint: tuple[Path, models.ResNet],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, _ = checkpoint
    right = names.to_detectron2

    def wrong(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = right(tensors)
        found["res2.0.conv1.norm.weight"] = found["res2.0.conv1.norm.weight"] + 1
        return found

    monkeypatch.setattr(names, "to_detectron2", wrong)
    out = file.parent / "d2.pth"
    assert run(["export", str(file), "--to", "detectron2", "--out", str(out)]) == 1
    assert "has different tensors: it was removed" in capsys.readouterr().err
    assert not out.exists() and not out.with_suffix(".yaml").exists()


def test_a_stem_alone_is_no_sign_of_detectron2() -> None:
    stem = ["backbone.bottom_up.stem.conv1.weight"]
    assert names.is_detectron2([*stem, "backbone.bottom_up.res2.0.conv1.weight"])
    assert not names.is_detectron2([*stem, "stages.0.blocks.0.conv1.weight"])  # timm's CoAtNet
