"""BYOL and LEWEL_B against slow float64 references, and their properties."""

import copy

import pytest
import torch

from lewel.methods.byol import BYOL
from lewel.methods.lewel_b import LewelB
from tests.conftest import randomise_statistics
from tests.methods.comparing import assert_trains_alike
from tests.methods.making import make_method
from tests.methods.reference import direction

SIZES = {"dim": 8, "hidden": 12}
ALIGNED = {"aligned_dim": 6, "groups": 2}


def views(batch: int = 3, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(batch, 3, 16, 16, dtype=dtype) for _ in range(2)]


def lewel_b(beta: float, **extra: object) -> LewelB:
    return make_method(LewelB, **SIZES, **ALIGNED, aligned_weight=beta, **extra)


def perturbed(method: torch.nn.Module) -> torch.nn.Module:
    """In float64, with a teacher that differs from the student in weights and statistics."""
    method.double()
    randomise_statistics(method)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    for name, buffer in method.named_buffers():
        if name.endswith((".keys", ".entries")):  # of length 1 in float32 only
            buffer.copy_(torch.nn.functional.normalize(buffer, dim=1))
    return method


@pytest.mark.parametrize("beta", [None, 0.5, 0.25, 1.0])
def test_loss_and_gradient_equal_the_slow_reference(beta: float | None) -> None:
    method = perturbed(make_method(BYOL, **SIZES) if beta is None else lewel_b(beta))
    images = views()
    groups = None if beta is None else 2
    twin = copy.deepcopy(method)
    method.train()
    step = method(images)
    step.loss.backward()

    twin.train()
    state = dict(twin.named_parameters()) | dict(twin.named_buffers())
    student = [twin.student.backbone(view) for view in images]
    with torch.no_grad():
        teacher = [twin.teacher.network.backbone(view) for view in images]
    slow = sum(direction(state, student[i], teacher[1 - i], groups, beta or 0.0) for i in range(2))
    slow.backward()

    assert abs(step.loss.item() - slow.item()) < 1e-9
    for (name, fast), other in zip(method.named_parameters(), twin.parameters(), strict=True):
        if fast.requires_grad:
            assert fast.grad is not None, name
            assert torch.allclose(fast.grad, other.grad, atol=1e-9, rtol=1e-9), name


def test_gradient_equals_finite_differences() -> None:
    method = perturbed(lewel_b(0.5)).train()
    images = views()
    method(images).loss.backward()
    for parameter in (
        method.student.head.project.last.weight,
        method.student.head.project_aligned.first.weight,
        method.student.backbone.net.layer4[0].conv2.weight,
    ):
        at = tuple((parameter.grad.abs() == parameter.grad.abs().max()).nonzero()[0].tolist())
        values = []
        for shift in (1e-6, -1e-6):
            with torch.no_grad():
                parameter[at] += shift
                values.append(method(images).loss.item())
                parameter[at] -= shift
        slope = (values[0] - values[1]) / 2e-6
        assert slope == pytest.approx(parameter.grad[at].item(), rel=1e-4, abs=1e-7)


def test_lewel_b_with_beta_0_is_byol_bit_for_bit() -> None:
    torch.manual_seed(3)
    ours = lewel_b(0.0)
    torch.manual_seed(3)
    byol = make_method(BYOL, **SIZES)
    assert ours.state_dict().keys() == byol.state_dict().keys()
    assert_trains_alike([ours, byol], lambda: views(4, torch.float32), 3)


def test_nothing_unused_is_built() -> None:
    for beta in (0.0, 0.5, 1.0):
        method = lewel_b(beta).train()
        method(views(4, torch.float32)).loss.backward()
        unused = [n for n, p in method.named_parameters() if p.requires_grad and p.grad is None]
        assert unused == []
    assert not hasattr(lewel_b(0.0), "predict_aligned")
    assert not hasattr(lewel_b(1.0), "predict")


@pytest.mark.parametrize("statistics", ["ema", "eman"])
def test_no_gradient_reaches_the_teacher_and_the_loss_depends_on_it(statistics: str) -> None:
    method = lewel_b(0.5, statistics=statistics).train()
    images = views(4, torch.float32)
    before = method(images)
    before.loss.backward()
    assert all(p.grad is None for p in method.teacher.parameters())
    with torch.no_grad():
        for parameter in method.teacher.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert method(images).loss.item() != before.loss.item()


def test_the_loss_is_symmetric_in_the_views_and_zero_at_best() -> None:
    method = lewel_b(0.5).double().train()
    one, two = views()
    assert method([one, two]).loss.item() == pytest.approx(method([two, one]).loss.item())
    assert 0 < method([one, two]).loss.item() < 8


def test_float16_autocast_keeps_maps_and_loss_in_float32() -> None:
    method = lewel_b(0.5).train()
    with torch.autocast("cpu", dtype=torch.float16):
        embeddings = method.student(views(4, torch.float32)[0])
        assert embeddings.maps.dtype == torch.float32
        assert embeddings.aligned.dtype == torch.float16
        assert method(views(4, torch.float32)).loss.dtype == torch.float32
