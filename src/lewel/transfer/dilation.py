"""Backbones for dense prediction: feature maps at a finer stride, with the same weights."""

from contextlib import suppress
from typing import Any

from torch import Tensor, nn
from torchvision.models.resnet import ResNet

from lewel.errors import UserError
from lewel.nn.backbone import Backbone, ResNetBackbone, TimmBackbone

STRIDE = 8  # output stride of the dilated FCN
TAKEN = "segment takes ResNets, and convolutional networks of timm such as timm/convnext_atto"


class DenseFeatures(nn.Module):
    """The feature maps of the last two stages: (B, 3, H, W) -> (B, C3, h, w), (B, C4, h, w)."""

    channels: tuple[int, int]
    stride: int  # of the last stage


class DenseResNet(DenseFeatures):
    """A ResNet dilated to output stride 8, or its own stride where that is finer."""

    def __init__(self, backbone: ResNetBackbone) -> None:
        super().__init__()
        self.net = backbone.net
        self.stride = dilate(self.net, STRIDE)
        self.channels = (_width(self.net.layer3), _width(self.net.layer4))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        net = self.net
        x = net.maxpool(net.relu(net.bn1(net.conv1(images))))
        third = net.layer3(net.layer2(net.layer1(x)))
        return third, net.layer4(third)


def dilate(net: ResNet, wanted: int) -> int:
    """Replace strides beyond the wanted one by dilation, in place -> the resulting stride.

    At the locations of the undilated network, the dilated one gives the same features.
    """
    stride = int(net.conv1.stride[0]) * (2 if isinstance(net.maxpool, nn.MaxPool2d) else 1)
    dilation = 1
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        strided = [
            layer
            for layer in stage.modules()
            if isinstance(layer, nn.Conv2d) and layer.stride != (1, 1)
        ]
        if not strided:
            continue
        if stride < wanted:
            stride *= 2
            continue
        before, dilation = dilation, 2 * dilation
        for layer in stage.modules():
            if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
                # The convolution that had the stride still uses the dilation of the stage before.
                far = before if layer in strided else dilation
                layer.dilation, layer.padding = (far, far), (far, far)
        for layer in strided:
            layer.stride = (1, 1)
    return stride


def _width(stage: nn.Module) -> int:
    """The output channels of a stage."""
    norms = [layer for layer in list(stage.children())[-1].modules() if _is_norm(layer)]
    return max(int(norm.num_features) for norm in norms)  # type: ignore[arg-type]


def _is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.BatchNorm2d)


class DenseTimm(DenseFeatures):
    """A convolutional timm network: dilated where timm supports it, else at its own stride."""

    def __init__(self, backbone: TimmBackbone, name: str) -> None:
        super().__init__()
        self.net, self.levels = _timm_levels(backbone, name)
        trial = next(self.net.parameters()).new_zeros(1, 3, 64, 96)
        try:  # validation images have any shape
            third, last = self.eval()(trial)
        except (AssertionError, RuntimeError) as error:
            raise UserError(
                f"{name} does not take images of any shape ({str(error).splitlines()[0]}): {TAKEN}."
            ) from None
        (third.sum() + last.sum()).backward()
        for weight in self.net.parameters():
            # Layers after these maps get no gradient, for which DDP would wait.
            weight.requires_grad_(weight.grad is not None)
            weight.grad = None
        self.channels = (third.shape[1], last.shape[1])
        self.stride = 64 // last.shape[2]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        third, last = self.net.forward_intermediates(
            images, indices=self.levels, intermediates_only=True
        )
        return third, last


def _timm_levels(backbone: TimmBackbone, name: str) -> tuple[Any, list[int]]:
    """The network, dilated if possible, and the indices of its last two stages."""
    import timm

    net: Any = backbone.net
    about = getattr(net, "feature_info", None)
    strides: list[int] = []
    if hasattr(net, "forward_intermediates"):
        strides = [int(level["reduction"]) for level in about or []]
    if not {8, 16, 32} <= set(strides):
        raise UserError(f"{name} gives no feature maps at strides 8, 16 and 32: {TAKEN}.")
    with suppress(TypeError, AssertionError, NotImplementedError):  # not all can be dilated
        finer = timm.create_model(
            name.removeprefix("timm/"), num_classes=0, global_pool="", output_stride=STRIDE
        )
        finer.load_state_dict(net.state_dict())
        net = finer.to(next(net.parameters()).device)
    return net, [len(strides) - 2, len(strides) - 1]


def dense(backbone: Backbone, name: str) -> DenseFeatures:
    """A backbone for dense prediction; a UserError if it gives no such feature maps."""
    if isinstance(backbone, ResNetBackbone):
        return DenseResNet(backbone)
    assert isinstance(backbone, TimmBackbone)
    return DenseTimm(backbone, name)
