"""The normalised mean square error, and the cosine loss over pairs of locations."""

import pytest
import torch
import torch.nn.functional as F

from lewel.losses.cosine import normalised_mse, paired_cosine


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


def test_paired_cosine_is_the_mean_over_pairs_of_each_image() -> None:
    one, two = (torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    pairs = torch.rand(3, 4, 4) < 0.4
    pairs[1] = False  # an image whose views do not overlap
    loss = paired_cosine(one, two, pairs)
    total = torch.zeros((), dtype=torch.float64)
    for image in range(3):
        found = [
            F.cosine_similarity(one[image, i], two[image, j].detach(), dim=0)
            for i in range(4)
            for j in range(4)
            if pairs[image, i, j]
        ]
        total = total - 2 * sum(found) / max(1, len(found)) / 3
    assert abs(loss.item() - total.item()) < 1e-12
    ours, slow = (torch.autograd.grad(out, one, retain_graph=True)[0] for out in (loss, total))
    assert torch.allclose(ours, slow, atol=1e-12)
    assert (ours[1] == 0).all()
    loss.backward()
    assert two.grad is None
