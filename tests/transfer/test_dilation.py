"""Feature maps of timm networks for dense prediction."""

import pytest
import torch

from lewel.errors import UserError
from lewel.nn.backbone import TimmBackbone, build_timm
from lewel.transfer.dilation import dense


@pytest.mark.parametrize(
    ("name", "stride"),
    [("convnext_atto", 8), ("efficientnet_lite0", 8), ("mobilenetv3_small_050", 32)],
)
def test_convolutional_networks_of_timm(name: str, stride: int) -> None:
    features = dense(TimmBackbone(build_timm(name, 64)), f"timm/{name}").train()
    third, last = features(torch.randn(2, 3, 64, 96))
    assert (third.shape[1], last.shape[1]) == features.channels
    assert features.stride == stride
    assert last.shape[2:] == (64 // stride, 96 // stride)
    (third.mean() + last.mean()).backward()
    for name, weight in features.named_parameters():
        assert weight.requires_grad == (weight.grad is not None), name  # DDP would wait for them
    assert sum(weight.requires_grad for weight in features.parameters()) > 20


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_transformers_are_refused(name: str) -> None:
    backbone = TimmBackbone(build_timm(name, 224))
    with pytest.raises(UserError, match=r"segment takes ResNets"):
        dense(backbone, f"timm/{name}")
