"""The size of images that maps are drawn over."""

import pytest

from lewel.evaluate.maps import readable_size
from lewel.interop.backbones import build_backbone


@pytest.mark.parametrize(
    ("name", "trained", "expected"),
    [
        ("resnet10", 64, 256),  # 8 x 8 locations
        ("resnet10", 160, 256),
        ("timm/convnext_atto", 64, 256),
        ("timm/vit_tiny_patch16_224", 32, 32),
    ],
)
def test_convolutional_networks_show_at_least_8_by_8_locations(
    name: str, trained: int, expected: int
) -> None:
    assert readable_size(build_backbone(name, "imagenet", 64, trained), trained) == expected


def test_fine_maps_need_no_larger_images() -> None:
    assert readable_size(build_backbone("resnet10", "small", 8, 32), 32) == 128  # 16 x 16
    assert readable_size(build_backbone("resnet10", "medium", 8, 64), 64) == 128  # 8 x 8
