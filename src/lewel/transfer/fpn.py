"""Feature maps for detectors: the third stage of a ResNet (C4), or an FPN."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import ResNet
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from lewel.errors import UserError
from lewel.nn.backbone import Backbone, ResNetBackbone, TimmBackbone

LEVELS = 4  # stages of a backbone in the FPN


def resnet_stride(net: ResNet) -> int:
    """The stride of the first stage: 4, 2 or 1 by the stem."""
    stride: int = net.conv1.stride[0]
    return stride * 2 if isinstance(net.maxpool, nn.MaxPool2d) else stride


def stage_channels(stage: nn.Sequential) -> int:
    """The output channels of a stage of a ResNet."""
    norms = [part for part in stage[-1].children() if isinstance(part, nn.BatchNorm2d)]
    return max(norm.num_features for norm in norms)


class C4(nn.Module):
    """A ResNet up to its third stage: (B, 3, H, W) -> one map (B, C, H/s, W/s)."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        if not isinstance(backbone, ResNetBackbone):
            raise UserError(
                "C4 uses the fourth stage of a ResNet as its head, which other networks lack: "
                "use --arch fpn."
            )
        net = backbone.net
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.stages = nn.Sequential(net.layer1, net.layer2, net.layer3)
        self.channels = stage_channels(net.layer3)
        self.strides = (4 * resnet_stride(net),)
        self.divisor = self.strides[0]  # images are padded to multiples of it

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"0": self.stages(self.stem(images))}


class Fpn(nn.Module):
    """An FPN over four stages: (B, 3, H, W) -> five maps of C channels."""

    def __init__(self, backbone: Backbone, channels: int) -> None:
        super().__init__()
        self.body: nn.Module
        if isinstance(backbone, ResNetBackbone):
            self.body = _Stages(backbone.net)
            first = resnet_stride(backbone.net)
            strides = tuple(first * 2**level for level in range(LEVELS))
            widths = [stage_channels(getattr(backbone.net, f"layer{n}")) for n in (1, 2, 3, 4)]
        else:
            assert isinstance(backbone, TimmBackbone)
            self.body, strides, widths = timm_features(backbone.net)
        self.channels = channels
        self.strides = (*strides, 2 * strides[-1])
        self.divisor = strides[-1]
        self.pyramid = FeaturePyramidNetwork(widths, channels, extra_blocks=LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps: dict[str, Tensor] = self.pyramid(
            OrderedDict((str(level), seen) for level, seen in enumerate(self.body(images)))
        )
        return maps


class _Stages(nn.Module):
    """A ResNet that returns the feature maps of its four stages."""

    def __init__(self, net: ResNet) -> None:
        super().__init__()
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.stages = nn.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4])

    def forward(self, images: Tensor) -> list[Tensor]:
        out, seen = self.stem(images), []
        for stage in self.stages:
            out = stage(out)
            seen.append(out)
        return seen


def timm_features(net: nn.Module) -> tuple[nn.Module, tuple[int, ...], list[int]]:
    """A timm network as its last four stages with the same weights; strides and channels."""
    import timm

    about: Any = net
    name = about.pretrained_cfg.get("architecture", type(net).__name__)
    refusal = UserError(
        f"timm/{name} does not give {LEVELS} maps of decreasing size, which an FPN needs: use a "
        "convolutional network such as resnet50 or timm/convnext_tiny."
    )
    try:
        twin: Any = timm.create_model(name, features_only=True)
        reductions: list[int] = list(twin.feature_info.reduction())
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        raise refusal from None
    increasing = all(
        a < b for a, b in zip(reductions[-LEVELS:], reductions[1 - LEVELS :], strict=False)
    )
    if len(reductions) < LEVELS or not increasing:
        raise refusal
    last = tuple(range(len(reductions) - LEVELS, len(reductions)))
    twin = timm.create_model(name, features_only=True, out_indices=last)
    # features_only joins the names of nested modules: stages.0 becomes stages_0.
    known = {key.replace(".", "_"): value for key, value in net.state_dict().items()}
    wanted = twin.state_dict()
    if {key.replace(".", "_") for key in wanted} - set(known):
        raise refusal
    twin.load_state_dict({key: known[key.replace(".", "_")] for key in wanted})
    widths = list(twin.feature_info.channels())
    side = 2 * reductions[-1]
    try:
        with torch.no_grad():
            seen = twin.eval()(torch.zeros(1, 3, side, side))
    except (AssertionError, RuntimeError):  # it accepts only one image size
        raise refusal from None
    if [one.shape[1] for one in seen] != widths:  # some networks are channels-last
        raise refusal
    return twin.train(), tuple(reductions[-LEVELS:]), widths
