"""ResNet backbones equal torchvision's, and their tokens are its features before pooling."""

import pytest
import torch
from torchvision import models

from lewel.nn.backbone import RESNETS, ResNetBackbone, build_resnet
from tests.conftest import randomise_statistics


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_it_is_torchvisions_network_without_the_classifier(name: str) -> None:
    ours, theirs = build_resnet(name), getattr(models, name)(num_classes=10)
    randomise_statistics(theirs)
    weights = {k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")}
    ours.load_state_dict(weights)
    theirs.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize(("stem", "stride"), [("imagenet", 32), ("medium", 16), ("small", 8)])
@pytest.mark.parametrize("name", ["resnet10", "resnet50"])
def test_tokens_average_to_the_pooled_features(name: str, stem: str, stride: int) -> None:
    backbone = ResNetBackbone(build_resnet(name, stem=stem, width=16)).eval()
    images = torch.randn(2, 3, 64, 64)
    tokens = backbone(images)
    assert tokens.shape == (2, (64 // stride) ** 2, backbone.channels)
    assert torch.allclose(tokens.mean(1), backbone.net(images), atol=1e-5)


def test_widths_scale_every_stage_and_keep_torchvisions_names() -> None:
    narrow = build_resnet("resnet18", width=16, stem="medium").state_dict()
    reference = build_resnet("resnet18").state_dict()
    assert narrow.keys() == reference.keys()
    assert narrow["layer4.1.conv2.weight"].shape == (128, 128, 3, 3)
    assert set(RESNETS) >= {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"}
