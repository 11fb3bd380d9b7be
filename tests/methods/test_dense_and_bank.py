"""What DenseCL, PixPro, ReSim, InstDisc and PCL have in common."""

import copy

import pytest
import torch

from lewel.methods.base import Method
from lewel.methods.densecl import DenseCL
from lewel.methods.inst_disc import InstDisc
from lewel.methods.pcl import PCL
from lewel.methods.pixpro import PixPro
from lewel.methods.resim import ReSim
from lewel.nn.backbone import TimmBackbone, build_timm
from lewel.nn.views import Views
from tests.methods.making import cut_views, known_settings, make_method

KINDS = [DenseCL, InstDisc, PCL, PixPro, ReSim]
IMAGES = 12
SETTINGS = {"dim": 8, "hidden": 12, "queue": 10, "norm_groups": 1, "images": IMAGES}
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.about.name)


def make(kind: type[Method], **extra: object) -> Method:
    known = known_settings(kind) | ({"images"} if kind in (InstDisc, PCL) else set())
    given = {key: value for key, value in SETTINGS.items() if key in known}
    return make_method(kind, **given, **extra).train()


def batch(kind: type[Method], size: int = 16) -> Views:
    views = cut_views(4, torch.float32, size, total=IMAGES)
    many = kind.about.views
    parts = (views.crops[:many], views.boxes[:many], views.flips[:many])
    return Views(*parts, views.indices, IMAGES)


@kinds
def test_nothing_unused_is_built_and_no_gradient_reaches_a_teacher(kind: type[Method]) -> None:
    method = make(kind)
    step = method(batch(kind))
    step.loss.backward()
    trained = {n: p for n, p in method.named_parameters() if p.requires_grad}
    assert [name for name, parameter in trained.items() if parameter.grad is None] == []
    assert all(p.grad is None for n, p in method.named_parameters() if n.startswith("teacher"))
    before = copy.deepcopy(method.state_dict())
    method.after_step(0.5, step.keys)
    changed = [n for n, v in method.state_dict().items() if not torch.equal(v, before[n])]
    own = {"inst_disc": "bank.entries", "pixpro": None, "densecl": "dense_queue.keys"}
    assert own.get(kind.about.name, "queue.keys") in {None, *changed}


@kinds
def test_under_autocast_the_loss_is_float32_and_nearly_the_same(kind: type[Method]) -> None:
    method, views = make(kind), batch(kind)
    twin = copy.deepcopy(method)
    torch.manual_seed(1)
    exact = method(views).loss
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.float16):
        loss = twin(views).loss
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.02, abs=0.02)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in twin.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", [DenseCL, InstDisc, PCL, PixPro])
def test_it_trains_a_vision_transformer(kind: type[Method]) -> None:
    backbone = TimmBackbone(build_timm("vit_tiny_patch16_224", 32))
    method, views = make(kind, backbone=backbone), batch(kind, 32)
    method(views).loss.backward()
    assert next(backbone.parameters()).grad is not None
