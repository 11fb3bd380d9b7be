"""The normalised mean square error."""

import pytest
import torch
import torch.nn.functional as F

from lewel.losses.cosine import normalised_mse


def test_it_is_the_squared_distance_of_unit_vectors() -> None:
    one, two = torch.randn(2, 5, 7, dtype=torch.float64), torch.randn(2, 5, 7, dtype=torch.float64)
    distance = (F.normalize(one, dim=-1) - F.normalize(two, dim=-1)).pow(2).sum(-1).mean()
    assert normalised_mse(one, two).item() == pytest.approx(distance.item(), abs=1e-12)


@pytest.mark.parametrize(("scale", "value"), [(3.0, 0.0), (-0.5, 4.0)])
def test_it_depends_on_directions_only(scale: float, value: float) -> None:
    z = torch.randn(4, 8)
    assert normalised_mse(z, scale * z).item() == pytest.approx(value, abs=1e-5)


def test_the_target_gets_no_gradient() -> None:
    one, two = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    normalised_mse(one, two).backward()
    assert one.grad is not None
    assert two.grad is None


def test_a_zero_vector_is_finite() -> None:
    one = torch.zeros(2, 4, requires_grad=True)
    loss = normalised_mse(one, torch.randn(2, 4))
    loss.backward()
    assert loss.isfinite()
    assert one.grad.isfinite().all()
