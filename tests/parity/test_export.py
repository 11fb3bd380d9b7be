"""The loading code that an export prints gives our features in torchvision, timm and others."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from lewel.cli.main import run
from lewel.interop.backbones import build_backbone, plain
from lewel.nn.backbone import RESNETS, build_resnet, exports_of
from tests.conftest import randomise_statistics


def paste(printed: str, **given: Any) -> dict[str, Any]:
    """Run the printed lines; returns the names that they define."""
    lines = printed.split("load it:\n")[1].splitlines()
    exec("\n".join(line.strip() for line in lines), given)
    return given


@pytest.mark.parametrize(
    ("name", "to", "size"),
    [
        ("resnet18", "torchvision", 64),
        ("resnet10", "torchvision", 64),
        ("resnet10", "timm", 64),
        ("resnet10", "onnx", 32),
        ("timm/vit_tiny_patch16_224", "timm", 32),
        ("timm/convnext_atto", "timm", 64),
        ("resnet10", "hub", 64),
        ("timm/vit_tiny_patch16_224", "hub", 32),
        ("timm/convnext_atto", "hub", 64),
        ("timm/vit_tiny_patch16_224", "torch-export", 32),
    ],
)
def test_the_printed_lines_load_the_export(
    name: str, to: str, size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = plain(build_backbone(name, "imagenet", 64, size)).eval()
    randomise_statistics(net)
    torch.save(net.state_dict(), tmp_path / "weights.pth")
    flags = ["--backbone", name, "--image-size", str(size), "--out", str(tmp_path / "there")]
    assert run(["export", str(tmp_path / "weights.pth"), "--to", to, *flags]) == 0
    images = torch.randn(3, 3, size, size)
    with torch.no_grad():
        expected = net(images)
        given = images.numpy() if to == "onnx" else images
        found = paste(capsys.readouterr().out, images=given)
        features = found["features"] if "features" in found else found["net"].eval()(images)
    if to == "torchvision":
        assert torch.equal(features, expected)
    else:
        close = 1e-4 * max(1.0, float(expected.abs().max()))
        assert torch.allclose(torch.as_tensor(features), expected, rtol=0, atol=close)


@pytest.mark.parametrize("name", RESNETS)
def test_other_libraries_can_build_the_exports_of(name: str) -> None:
    with torch.device("meta"):
        ours = {n: v.shape for n, v in build_resnet(name).state_dict().items()}
        if name != "resnet10":
            theirs = timm.create_model(name, num_classes=0).state_dict()
            assert ours == {n: v.shape for n, v in theirs.items()}
    allowed = exports_of(name, "imagenet", 64)
    assert {"torchvision", "timm", "hub", "onnx", "torch-export"} <= set(allowed)
    assert ("detectron2" in allowed) == (name != "resnet10")
    assert ("mmseg" in allowed) == (name != "resnet10" and not name.startswith("wide"))
    assert exports_of(name, "medium", 64) == exports_of(name, "imagenet", 32)
    assert exports_of(name, "small", 64) == ("onnx", "torch-export")
