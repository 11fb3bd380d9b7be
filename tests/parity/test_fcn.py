"""The dilated FCN against torchvision's dilated ResNet, a head written out, and timm."""

import timm
import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models

from lewel.nn.backbone import ResNetBackbone, TimmBackbone, build_resnet, build_timm
from lewel.transfer.dilation import DenseFeatures, DenseResNet, DenseTimm
from lewel.transfer.fcn import FCN, FCNHead, enlarge, pixel_loss
from tests.conftest import randomise_statistics


def test_the_dilated_resnet_is_torchvisions() -> None:
    plain = build_resnet("resnet50")
    randomise_statistics(plain)
    reference = models.resnet50(replace_stride_with_dilation=[False, True, True])
    reference.fc = nn.Identity()
    reference.load_state_dict(plain.state_dict())
    ours = DenseResNet(ResNetBackbone(plain)).eval()
    stages: list[torch.Tensor] = []
    for stage in (reference.layer3, reference.layer4):
        stage.register_forward_hook(lambda module, given, out: stages.append(out))
    images = torch.randn(1, 3, 72, 64)
    with torch.no_grad():
        reference.eval()(images)
        third, last = ours(images)
    assert torch.equal(third, stages[0]) and torch.equal(last, stages[1])
    assert ours.channels == (third.shape[1], last.shape[1]) == (1024, 2048)
    assert ours.stride == 8 and last.shape[2:] == (9, 8)


def check_same_at_the_undilated_locations(stem: str, step: int, stride: int) -> None:
    """At the locations of the undilated network the features are the same."""
    plain = build_resnet("resnet18", stem=stem, width=8)  # type: ignore[arg-type]
    randomise_statistics(plain)
    images = torch.randn(1, 3, 96, 64)
    backbone = ResNetBackbone(plain).eval()
    with torch.no_grad():
        tokens = backbone(images)
        dense = DenseResNet(backbone).eval()
        _, last = dense(images)
    assert dense.stride == stride
    assert last.shape[2:] == (12, 8)
    coarse = last[:, :, ::step, ::step].flatten(2).transpose(1, 2)
    torch.testing.assert_close(coarse, tokens, rtol=1e-4, atol=1e-5)


def test_stems_are_dilated_only_as_far_as_they_need() -> None:
    check_same_at_the_undilated_locations("imagenet", 4, 8)
    check_same_at_the_undilated_locations("medium", 2, 8)
    check_same_at_the_undilated_locations("small", 1, 8)


def test_the_head_is_mmsegmentations() -> None:
    head = FCNHead(6, 4, 3, convolutions=2, joins=True).eval()
    randomise_statistics(head)
    weights = head.state_dict()
    features = torch.randn(2, 6, 5, 7)

    def convolve(x: torch.Tensor, name: str) -> torch.Tensor:
        x = F.conv2d(x, weights[f"{name}.0.weight"], padding=1)
        mean, variance, scale, offset = (
            weights[f"{name}.1.{part}"].view(1, -1, 1, 1)
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (variance + 1e-5).sqrt() * scale + offset).relu()

    x = convolve(convolve(features, "convolve.0"), "convolve.1")
    x = convolve(torch.cat([features, x], 1), "join")
    expected = F.conv2d(x, weights["classify.weight"], weights["classify.bias"])
    torch.testing.assert_close(head(features), expected, rtol=1e-4, atol=1e-5)
    auxiliary = FCNHead(6, 4, 3, convolutions=1, joins=False)
    assert set(auxiliary.state_dict()) == {
        n for n in weights if n[:10] in ("convolve.0", "classify.w", "classify.b")
    }


def test_ignored_pixels_count_as_zeros() -> None:
    scores = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    masks = torch.randint(3, (2, 4, 5))
    masks[0, :2] = 255
    total = 0.0
    for image in range(2):
        for row in range(4):
            for column in range(5):
                if (number := int(masks[image, row, column])) != 255:
                    total -= scores[image, :, row, column].log_softmax(0)[number].item()
    torch.testing.assert_close(pixel_loss(scores, masks).item(), total / 40)
    assert pixel_loss(scores, torch.full_like(masks, 255)).item() == 0


class Known(DenseFeatures):
    """Two maps that are weights themselves."""

    channels, stride = (4, 6), 8

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Parameter(torch.randn(2, 4, 3, 3))
        self.last = nn.Parameter(torch.randn(2, 6, 3, 3))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.third, self.last


def test_the_auxiliary_head_adds_two_fifths_of_its_loss() -> None:
    model = FCN(Known(), 3, channels=4, auxiliary_channels=5).eval()
    images, masks = torch.randn(2, 3, 24, 24), torch.randint(3, (2, 24, 24))
    main = pixel_loss(enlarge(model.head(model.features.last), images), masks)
    other = pixel_loss(enlarge(model.auxiliary(model.features.third), images), masks)
    step = model([images], masks)
    torch.testing.assert_close(step.loss, main + 0.4 * other)
    right = (model.scores(images).argmax(1) == masks).float().mean()
    torch.testing.assert_close(step.logs["accuracy"], right)


def test_a_timm_network_is_dilated_with_the_same_weights() -> None:
    backbone = TimmBackbone(build_timm("resnet10t", 64))
    randomise_statistics(backbone)
    reference = timm.create_model(
        "resnet10t", features_only=True, out_indices=(3, 4), output_stride=8
    )
    missing = reference.load_state_dict(backbone.net.state_dict(), strict=False)
    assert not missing.missing_keys
    dense = DenseTimm(backbone, "timm/resnet10t").eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for one, two in zip(dense(images), reference.eval()(images), strict=True):
            assert torch.equal(one, two)
    assert dense.stride == 8 and dense.channels == tuple(reference.feature_info.channels())
