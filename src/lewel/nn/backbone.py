"""Backbones: torchvision and timm networks whose last feature map is read as tokens."""

from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels

Stem = Literal["imagenet", "medium", "small"]
Depths = tuple[int, int, int, int]

RESNETS: dict[str, tuple[type[BasicBlock | Bottleneck], Depths, dict[str, int]]] = {
    "resnet10": (BasicBlock, (1, 1, 1, 1), {}),
    "resnet18": (BasicBlock, (2, 2, 2, 2), {}),
    "resnet34": (BasicBlock, (3, 4, 6, 3), {}),
    "resnet50": (Bottleneck, (3, 4, 6, 3), {}),
    "resnet101": (Bottleneck, (3, 4, 23, 3), {}),
    "resnet152": (Bottleneck, (3, 8, 36, 3), {}),
    "resnext50_32x4d": (Bottleneck, (3, 4, 6, 3), {"groups": 32, "width_per_group": 4}),
    "resnext101_32x8d": (Bottleneck, (3, 4, 23, 3), {"groups": 32, "width_per_group": 8}),
    "resnext101_64x4d": (Bottleneck, (3, 4, 23, 3), {"groups": 64, "width_per_group": 4}),
    "wide_resnet50_2": (Bottleneck, (3, 4, 6, 3), {"width_per_group": 128}),
    "wide_resnet101_2": (Bottleneck, (3, 4, 23, 3), {"width_per_group": 128}),
}
CONV1: dict[Stem, tuple[int, int]] = {"imagenet": (7, 2), "medium": (3, 2), "small": (3, 1)}
STOCK = 64  # channels of the first stage of every published ResNet


def build_resnet(name: str, *, stem: Stem = "imagenet", width: int = STOCK) -> ResNet:
    """A torchvision ResNet without its classifier, (B, 3, S, S) -> (B, C).

    `medium` and `small` replace the 7x7 convolution and the max-pool (stride 4) by a 3x3
    convolution of stride 2 or 1, so that images of 64 or 32 px keep 4x4 locations. `width` is the
    number of channels of the first stage.
    """
    block, depths, shape = RESNETS[name]
    net = models.ResNet(block, list(depths), **shape)
    if width != STOCK or stem != "imagenet":
        kernel, stride = CONV1[stem]
        net.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.bn1 = nn.BatchNorm2d(width)
        if stem != "imagenet":
            net.maxpool = nn.Identity()
    if width != STOCK:
        _remake_stages(net, block, depths, width)
    net.fc = nn.Identity()
    return net


def _remake_stages(
    net: ResNet, block: type[BasicBlock | Bottleneck], depths: Depths, width: int
) -> None:
    """Rebuild the four stages at another width, initialised as torchvision does."""
    net.inplanes = width
    for number, depth in enumerate(depths):
        stage = net._make_layer(
            block, width * 2**number, depth, stride=1 if number == 0 else 2, dilate=False
        )
        for module in stage.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        setattr(net, f"layer{number + 1}", stage)


def build_timm(name: str, image_size: int, several_sizes: bool = False) -> nn.Module:
    """A timm network without classifier and pooling, for images of this size, or also of others."""
    return build_timm_with_settings(name, image_size, several_sizes)[0]


def build_timm_with_settings(
    name: str, image_size: int, several_sizes: bool = False
) -> tuple[nn.Module, dict[str, Any]]:
    """A timm network without classifier and pooling, and the other arguments it accepted."""
    import timm

    # Transformers need the size, and would rename their norm for average pooling.
    size: dict[str, Any] = {"img_size": image_size}
    fixed = ({**size, "fc_norm": False}, size)
    any_size = [{**settings, "dynamic_img_size": True} for settings in fixed]
    for extra in (*any_size, *fixed) if several_sizes else fixed:
        with suppress(TypeError):  # other networks have no such arguments
            return timm.create_model(name, num_classes=0, global_pool="", **extra), extra
    return timm.create_model(name, num_classes=0, global_pool=""), {}


class Backbone(nn.Module):
    """A network `net` that gives tokens before its pooling: (B, 3, S, S) -> (B, N, C)."""

    channels: int

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self._locations: dict[int, int] = {}

    def locations(self, image_size: int) -> int:
        """The number of spatial locations N for an image size; raises if it is not supported."""
        if image_size not in self._locations:
            was_training = self.training
            self.eval()
            with torch.no_grad():
                tokens = self(next(self.parameters()).new_zeros(1, 3, image_size, image_size))
            self.train(was_training)
            self._locations[image_size] = int(tokens.shape[1])
        return self._locations[image_size]


class ResNetBackbone(Backbone):
    """A torchvision ResNet."""

    net: ResNet

    def __init__(self, net: ResNet) -> None:
        super().__init__(net)
        last = list(net.layer4[-1].children())
        self.channels = max(norm.num_features for norm in last if isinstance(norm, nn.BatchNorm2d))

    def forward(self, images: Tensor, stages: bool = False) -> Any:
        """The tokens, or the outputs of the last three stages."""
        net = self.net
        x = net.maxpool(net.relu(net.bn1(net.conv1(images))))
        c3 = net.layer2(net.layer1(x))
        c4 = net.layer3(c3)
        c5 = net.layer4(c4)
        return (c3, c4, c5) if stages else grid_tokens(c5)

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The feature maps C3, C4 and C5 (B, C, H, W); by a call, for hooks and compilers."""
        found: tuple[Tensor, Tensor, Tensor] = self(images, True)
        return found

    @property
    def stage_channels(self) -> tuple[int, int, int]:
        """The channels of C3, C4 and C5."""
        return self.channels // 4, self.channels // 2, self.channels


class TimmBackbone(Backbone):
    """A timm network made by `build_timm` without pooling: convolutional or a transformer."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        about: Any = net
        self.channels = int(getattr(about, "head_hidden_size", about.num_features))
        self.prefix = int(getattr(net, "num_prefix_tokens", 0))
        self.channels_come_last = getattr(net, "output_fmt", "NCHW") == "NHWC"

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images)
        if features.ndim == 3:  # class and register tokens come first
            return features[:, self.prefix :]
        return features.flatten(1, 2) if self.channels_come_last else grid_tokens(features)


def grid_tokens(features: Tensor) -> Tensor:
    """A feature map (B, C, H, W) as tokens (B, N, C), row by row."""
    return features.flatten(2).transpose(1, 2)


FORMATS = ("torchvision", "timm", "hub", "detectron2", "mmseg", "onnx", "torch-export")
GRAPHS = ("onnx", "torch-export")  # contain the network itself, so any can be exported


def exports_of(name: str, stem: Stem, width: int) -> tuple[str, ...]:
    """The formats that a backbone can be exported to."""
    return tuple(to for to in FORMATS if obstacle(to, name, stem, width) is None)


def obstacle(to: str, name: str, stem: Stem, width: int) -> str | None:
    """Why another project cannot build a backbone; None where it can."""
    if to in GRAPHS:
        return None
    to = "timm" if to == "hub" else to  # timm builds the models of hubs
    if name.startswith("timm/"):
        return None if to == "timm" else f"{to} has no {name}"
    if stem != "imagenet":
        return f"{to}'s ResNets begin with a 7x7 convolution and a max-pool, not a {stem} stem"
    if width != STOCK:
        return f"{to}'s ResNets begin with {STOCK} channels, not {width}"
    if name == "resnet10" and to in ("detectron2", "mmseg"):
        return f"{to}'s smallest ResNet has 18 layers, not 10"
    if name.startswith("wide_") and to == "mmseg":
        return "mmseg has no wide ResNets"
    return None
