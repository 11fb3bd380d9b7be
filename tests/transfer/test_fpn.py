"""FPNs on timm networks, and PreciseBN."""

import pytest
import torch
from torch import nn

from lewel.errors import UserError
from lewel.nn.backbone import TimmBackbone, build_timm
from lewel.nn.norm import precise_statistics
from lewel.transfer.fpn import C4, Fpn


def test_precise_statistics_are_the_mean_over_batches() -> None:
    norm = nn.BatchNorm1d(2)
    norm.running_mean.fill_(100.0)
    batches = [torch.randn(8, 2) * n + n for n in (1.0, 2.0, 3.0)]
    norm.eval()
    with precise_statistics(norm), torch.no_grad():
        for batch in batches:
            norm(batch)
    assert not norm.training and norm.momentum == 0.1
    torch.testing.assert_close(norm.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([b.var(0) for b in batches]).mean(0))


def test_an_fpn_on_timm_networks() -> None:
    for name in ("resnet10t", "convnext_atto"):
        net = build_timm(name, 64)
        body = Fpn(TimmBackbone(net), 8).eval()
        assert body.strides == (4, 8, 16, 32, 64)
        images = torch.randn(1, 3, 64, 64)
        with torch.no_grad():
            last = body.body(images)[-1]
            assert torch.allclose(last, net.eval().forward_features(images), atol=1e-4)
    vit = TimmBackbone(build_timm("vit_tiny_patch16_224", 64))
    with pytest.raises(UserError, match=r"timm/vit_tiny_patch16_224 does not give 4 maps"):
        Fpn(vit, 8)
    with pytest.raises(UserError, match="use --arch fpn"):
        C4(vit)


def test_networks_of_one_image_size_are_refused() -> None:
    swin = TimmBackbone(build_timm("swin_tiny_patch4_window7_224", 224))
    with pytest.raises(UserError, match="timm/swin_tiny_patch4_window7_224 does not give 4 maps"):
        Fpn(swin, 8)
