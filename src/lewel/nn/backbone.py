"""Backbones: plain torchvision networks whose last feature map is read as tokens."""

from typing import Literal

from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

Stem = Literal["imagenet", "small", "tiny"]

RESNETS: dict[str, tuple[type[BasicBlock | Bottleneck], tuple[int, int, int, int]]] = {
    "resnet10": (BasicBlock, (1, 1, 1, 1)),
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}
STRIDE: dict[Stem, int] = {"imagenet": 32, "small": 16, "tiny": 8}


def build_resnet(name: str, *, stem: Stem = "imagenet", width: int = 64) -> ResNet:
    """A torchvision ResNet without its classifier, (B, 3, S, S) -> (B, C).

    `small` and `tiny` replace the 7x7 convolution and the max-pool (stride 4) by a 3x3 convolution
    of stride 2 or 1, so that images of 64 or 32 px keep 4x4 positions. `width` is the channels of
    the first stage (64 in the paper's networks).
    """
    block, depths = RESNETS[name]
    net = models.ResNet(block, list(depths))
    if width != 64 or stem != "imagenet":
        kernel, stride = {"imagenet": (7, 2), "small": (3, 2), "tiny": (3, 1)}[stem]
        net.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.bn1 = nn.BatchNorm2d(width)
        if stem != "imagenet":
            net.maxpool = nn.Identity()
    if width != 64:
        _remake_stages(net, block, depths, width)
    net.fc = nn.Identity()
    return net


def _remake_stages(
    net: ResNet, block: type[BasicBlock | Bottleneck], depths: tuple[int, ...], width: int
) -> None:
    """Build the four stages anew at another width, initialised as torchvision does."""
    net.inplanes = width
    for number, depth in enumerate(depths):
        stage = net._make_layer(
            block, width * 2**number, depth, stride=1 if number == 0 else 2, dilate=False
        )
        for module in stage.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        setattr(net, f"layer{number + 1}", stage)


class Backbone(nn.Module):
    """A plain network `net`, read as tokens before its pooling: (B, 3, S, S) -> (B, N, C)."""

    def __init__(self, net: ResNet, stride: int) -> None:
        super().__init__()
        self.net = net
        self.stride = stride
        last = list(net.layer4[-1].children())
        self.channels = max(norm.num_features for norm in last if isinstance(norm, nn.BatchNorm2d))

    def forward(self, images: Tensor) -> Tensor:
        net = self.net
        x = net.maxpool(net.relu(net.bn1(net.conv1(images))))
        x = net.layer4(net.layer3(net.layer2(net.layer1(x))))
        tokens: Tensor = x.flatten(2).transpose(1, 2)  # (B, C, H, W) -> (B, N, C), row by row
        return tokens
