"""DenseCL's step against one of lightly's modules with the same weights and the same queues."""

import copy

import pytest
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules.heads import DenseCLProjectionHead
from lightly.models.utils import most_similar_index, select_most_similar
from torch import Tensor, nn

from lewel.methods.densecl import DenseCL
from lewel.ops.correspondence import at_locations, most_similar
from tests.methods.making import cut_views, make_method
from tests.methods.test_byol_lewel_b import perturbed


def test_the_correspondence_is_lightlys() -> None:
    one, two, values = torch.randn(3, 9, 16), torch.randn(3, 9, 16), torch.randn(3, 9, 5)
    chosen = most_similar(one, two)
    assert torch.equal(chosen, most_similar_index(one, two))
    assert torch.equal(at_locations(values, chosen), select_most_similar(one, two, values))


def lightlys_head(project: nn.Module) -> DenseCLProjectionHead:
    """lightly's head with our weights."""
    out = DenseCLProjectionHead(64, 12, 8).double()
    first, last = (layer for layer in out.layers if isinstance(layer, nn.Linear))
    first.load_state_dict(project.first.state_dict())
    last.load_state_dict(project.last.state_dict())
    return out


def criterion(keys: Tensor) -> NTXentLoss:
    """lightly's loss, whose memory bank holds these keys (K, D)."""
    out = NTXentLoss(temperature=0.2, memory_bank_size=tuple(keys.shape))
    out(torch.randn(keys.shape), torch.randn(keys.shape))  # makes the bank
    bank = out.memory_bank.bank
    out.memory_bank.bank = keys.clone() if bank.shape == keys.shape else keys.T.clone()
    return out.double()


def test_loss_and_gradient_of_a_step_are_lightlys() -> None:
    method = make_method(DenseCL, dim=8, hidden=12, queue=10, norm_groups=1)
    method = perturbed(method).train()
    twin, (one, two) = copy.deepcopy(method), (views := cut_views(4))
    step = method(views)
    step.loss.backward()

    student, teacher = twin.student, twin.teacher.network
    heads = [lightlys_head(p) for p in (student.head.project, student.head.project_locations)]
    others = [lightlys_head(p) for p in (teacher.head.project, teacher.head.project_locations)]
    features = student.backbone(one)
    with torch.no_grad():
        key_features = teacher.backbone(two)
        key, key_local = others[0](key_features.mean(1)), others[1](key_features)
        key_local = select_most_similar(features, key_features, key_local)
    loss_global = criterion(twin.queue.keys)(heads[0](features.mean(1)), key)
    locals_, keys = heads[1](features).flatten(0, 1), key_local.flatten(0, 1)
    loss_local = criterion(twin.dense_queue.keys)(locals_, keys)
    loss = 0.5 * loss_global + 0.5 * loss_local
    loss.backward()

    assert step.loss.item() == pytest.approx(loss.item(), abs=1e-6)
    ours, theirs = (net.student.backbone.net.conv1.weight.grad for net in (method, twin))
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    layer = next(one for one in heads[1].layers if isinstance(one, nn.Linear))
    grad = method.student.head.project_locations.first.weight.grad
    assert torch.allclose(grad, layer.weight.grad, rtol=1e-5, atol=1e-7)
