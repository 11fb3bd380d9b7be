"""Small things that many tests share."""

import signal

import pytest
import torch

from lewel.nn.backbone import Backbone, ResNetBackbone, build_resnet

# A shell starts what runs in the background deaf to Ctrl-C, and so would be all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that two processes end together."""
    items.sort(key=lambda item: "at_the_scale_of_minutes" not in item.name)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def small_backbone(width: int = 8) -> Backbone:
    """A real but tiny ResNet: 16 px images give 2x2 positions of 8 * width channels."""
    return ResNetBackbone(build_resnet("resnet10", stem="small", width=width))


def randomise_statistics(module: torch.nn.Module) -> None:
    """Give batch norm buffers values that a mistake would show."""
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.3)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
