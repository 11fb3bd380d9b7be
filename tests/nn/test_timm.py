"""timm's networks as backbones, torchvision's ResNet-50, and what can be exported from each."""

import pytest
import timm
import torch

from lewel.config.build import build_method
from lewel.config.resolve import resolve
from lewel.errors import UserError
from lewel.interop.backbones import build_backbone, plain
from lewel.methods.byol import BYOL
from lewel.methods.lewel_b import LewelB
from lewel.methods.lewel_m import LewelM
from lewel.methods.moco_v2 import MoCoV2
from lewel.nn.backbone import RESNETS, TimmBackbone, build_timm, exports_of
from lewel.nn.norm import synchronise
from lewel.optim.groups import parameter_groups
from tests.methods.making import make_method

METHODS = {
    "byol": (BYOL, {}),
    "lewel_b": (LewelB, {"aligned_dim": 8}),
    "moco_v2": (MoCoV2, {"queue": 8, "norm_groups": 2}),
    "lewel_m": (LewelM, {"aligned_dim": 8, "queue": 8, "norm_groups": 2}),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "size"),
    [("timm/vit_tiny_patch16_224", 32), ("timm/convnext_atto", 64), ("resnet50", 64)],
)
def test_every_method_trains_with_it(name: str, size: int, method: str) -> None:
    kind, extra = METHODS[method]
    backbone = build_backbone(name, "imagenet", 64, size)
    made = make_method(kind, backbone, dim=8, hidden=16, **extra).train()
    optimizer = torch.optim.SGD(parameter_groups(made, 1e-4, True), lr=0.05)
    images = [torch.randn(4, 3, size, size) for _ in range(2)]
    before = {n: p.clone() for n, p in made.student.named_parameters()}
    for step in range(2):
        done = made(images)
        assert done.loss.isfinite()
        done.loss.backward()
        unused = [n for n, p in made.named_parameters() if p.requires_grad and p.grad is None]
        assert unused == []
        optimizer.step()
        optimizer.zero_grad()
        made.after_step(step / 2, done.keys)
    moved = sum(not torch.equal(before[n], p) for n, p in made.student.named_parameters())
    assert moved > 0.9 * len(before)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_tiny_patch16_224", 48),
        ("convnext_atto", 64),
        ("swin_tiny_patch4_window7_224", 224),
        ("mobilenetv3_small_100", 64),
        ("resnet18", 64),
    ],
)
def test_tokens_are_timms_own_features(name: str, size: int) -> None:
    torch.manual_seed(0)
    net = build_timm(name, size)
    backbone = TimmBackbone(net).eval()
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        tokens = backbone(images)
        plain = timm.create_model(name, num_classes=0, global_pool="", **_size_for(net, size))
        plain.load_state_dict(net.state_dict())
        features = plain.eval()(images)
    assert tokens.shape == (2, backbone.locations(size), backbone.channels)
    if name.startswith("vit"):
        features = features[:, 1:]  # without the class token
    elif name.startswith("swin"):
        features = features.flatten(1, 2)
    else:
        features = features.flatten(2).transpose(1, 2)
    assert torch.equal(tokens, features)


def _size_for(net: torch.nn.Module, size: int) -> dict[str, int]:
    return {"img_size": size} if hasattr(net, "patch_embed") else {}


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "resnet18", "beit_base_patch16_224", "efficientnet_b0"]
)
def test_the_plain_network_pools_the_same_tokens(name: str) -> None:
    backbone = build_backbone(f"timm/{name}", "imagenet", 64, 64).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        tokens = backbone(images)
        assert torch.allclose(plain(backbone)(images), tokens.mean(1), atol=1e-4)


def test_networks_that_cannot_be_read_as_tokens_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="cannot be built without its pooling"):
        build_backbone("timm/deit_tiny_distilled_patch16_224", "imagenet", 64, 224)
    make = TimmBackbone.__init__

    def undeclared(backbone: TimmBackbone, net: torch.nn.Module) -> None:
        del net.num_prefix_tokens  # older releases of timm do not know of XCiT's class token
        make(backbone, net)

    monkeypatch.setattr(TimmBackbone, "__init__", undeclared)
    config = resolve({}, {"backbone": "timm/xcit_nano_12_p16_224", "batch_size": 8})
    with pytest.raises(UserError, match="form no square grid"):
        build_method(config, images=100)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "regnety_002", "resnet18"])
def test_synchronised_norms_keep_their_activations(name: str) -> None:
    backbone = build_backbone(f"timm/{name}", "imagenet", 64, 64).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = backbone(images)
        synchronise(backbone)
        assert any(isinstance(m, torch.nn.SyncBatchNorm) for m in backbone.modules())
        assert torch.equal(backbone(images), before)


@pytest.mark.parametrize(
    "name", ["beit_base_patch16_224", "convnextv2_atto", "swin_tiny_patch4_window7_224"]
)
def test_scales_and_biases_of_timms_layers_are_not_decayed(name: str) -> None:
    backbone = build_backbone(f"timm/{name}", "imagenet", 64, 224)
    decayed = {id(p) for p in parameter_groups(backbone, 0.1, True)[0]["params"]}
    for label, parameter in backbone.named_parameters():
        small = parameter.ndim <= 1 or "bias" in label
        assert (id(parameter) in decayed) != small, label


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet51", "Did you mean resnet50"),
        ("timm/vit_tiny_patch16_225", "Did you mean vit_tiny_patch16_224"),
        ("timm/", "expected one of"),
        ("torchvision/resnet50", "timm/NAME"),
    ],
)
def test_unknown_networks_get_a_suggestion(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_backbone(name, "imagenet", 64, 64)


def test_stem_and_width_are_for_resnets() -> None:
    with pytest.raises(UserError, match="--stem and --width are for ResNets"):
        build_backbone("timm/convnext_atto", "small", 64, 64)


def test_the_formats_of_a_backbone() -> None:
    assert "detectron2" in exports_of("resnet50", "imagenet", 64)
    assert exports_of("resnet50", "small", 64) == ("onnx", "torch-export")
    assert "torchvision" not in exports_of("timm/convnext_atto", "imagenet", 64)


@pytest.mark.parametrize("name", [name for name in RESNETS if "x" in name or "wide" in name])
def test_the_other_resnets_are_torchvisions(name: str) -> None:
    from torchvision import models

    with torch.device("meta"):
        ours = build_backbone(name, "imagenet", 64, 64).net.state_dict()
        theirs = getattr(models, name)().state_dict()
    assert {n: v.shape for n, v in ours.items()} == {
        n: v.shape for n, v in theirs.items() if not n.startswith("fc.")
    }
