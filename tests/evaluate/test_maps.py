"""The size of images that maps are drawn over."""

import pytest

from lewel.evaluate.maps import readable_size
from lewel.interop.backbones import build_backbone


@pytest.mark.parametrize(
    ("name", "trained", "expected"),
    [
        ("resnet10", 64, 128),
        ("resnet10", 160, 160),
        ("timm/convnext_atto", 64, 128),
        ("timm/vit_tiny_patch16_224", 32, 32),
    ],
)
def test_convolutional_networks_show_at_least_128_px(
    name: str, trained: int, expected: int
) -> None:
    assert readable_size(build_backbone(name, "imagenet", 64, trained), trained) == expected
