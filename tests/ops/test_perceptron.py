"""Chunked perceptrons against autograd on the whole, and against finite differences."""

import pytest
import torch
import torch.nn.functional as F

from lewel.losses.cosine import normalised_mse
from lewel.ops import perceptron


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks so small that there are several, the last one shorter."""
    monkeypatch.setattr(perceptron, "_PART", 60)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_linear_variance_is_the_variance_of_the_outputs() -> None:
    tokens, weight = random(17, 4), random(9, 4)
    slow = (tokens @ weight.T).var(0, unbiased=False)
    assert torch.allclose(perceptron.linear_variance(tokens, weight), slow, atol=1e-12)
    assert torch.autograd.gradcheck(perceptron.linear_variance, (tokens, weight))


def test_gathered_moments_are_those_of_all_rows() -> None:
    maps, values = random(5, 6, 3), random(5, 3, 8)
    rows = (maps @ values).flatten(0, 1)
    mean, variance = perceptron.gathered_moments(maps, values)
    assert torch.allclose(mean, rows.mean(0), atol=1e-12)
    assert torch.allclose(variance, rows.var(0, unbiased=False), atol=1e-12)
    assert torch.autograd.gradcheck(perceptron.gathered_moments, (maps, values))


def test_gathered_perceptron_is_relu_and_a_linear_layer() -> None:
    inputs = random(5, 6, 3), random(5, 3, 8), random(4, 8), random(4)
    maps, values, weight, bias = inputs
    slow = F.linear((maps @ values).relu(), weight, bias)
    assert torch.allclose(perceptron.gathered_perceptron(*inputs), slow, atol=1e-12)
    assert torch.autograd.gradcheck(perceptron.gathered_perceptron, inputs)


def test_perceptron_loss_and_its_gradient_are_those_of_the_whole() -> None:
    tokens, target = random(23, 5), random(23, 3).detach()
    layers = random(12, 5), random(12), random(3, 12), random(3)
    first, last = layers[:2], layers[2:]
    slow = normalised_mse(F.linear(F.linear(tokens, *first).relu(), *last), target)
    fast = perceptron.perceptron_loss(tokens, first, last, target, normalised_mse)
    assert fast.item() == pytest.approx(slow.item(), abs=1e-12)
    wanted = torch.autograd.grad(3 * slow, (tokens, *layers))
    given = torch.autograd.grad(3 * fast, (tokens, *layers))
    for one, other in zip(given, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_without_gradients_none_are_taken() -> None:
    tokens, target = torch.randn(23, 5), torch.randn(23, 3)
    first, last = (torch.randn(12, 5), torch.randn(12)), (torch.randn(3, 12), torch.randn(3))
    out = perceptron.perceptron_loss(tokens, first, last, target, normalised_mse)
    assert not out.requires_grad
