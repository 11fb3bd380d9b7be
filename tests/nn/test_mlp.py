"""The MLP with a folded norm against the plain one, in training and evaluation."""

import copy

import pytest
import torch

from lewel.losses.cosine import normalised_mse
from lewel.nn.mlp import MLP
from lewel.ops.aggregate import aggregate
from lewel.ops.maps import softmax_maps


def folding_and_plain(inputs: int, hidden: int, outputs: int) -> tuple[MLP, MLP]:
    folding = MLP(inputs, hidden, outputs).double()
    with torch.no_grad():
        for parameter in folding.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        folding.norm.running_mean.normal_()
        folding.norm.running_var.uniform_(0.5, 2)
    plain = copy.deepcopy(folding)
    plain._can_fold = lambda tokens: False  # type: ignore[method-assign]
    return folding, plain


def assert_same(
    folding: MLP, plain: MLP, one: torch.Tensor, two: torch.Tensor, *inputs: torch.Tensor
) -> None:
    """Outputs, statistics and gradients of the parameters and of pairs of inputs."""
    assert torch.allclose(one, two, atol=1e-10)
    for name, buffer in folding.named_buffers():
        assert torch.allclose(buffer, plain.get_buffer(name), atol=1e-12), name
    weight = torch.randn_like(one)
    (one * weight).sum().backward()
    (two * weight).sum().backward()
    for name, parameter in folding.named_parameters():
        assert parameter.grad is not None, name
        assert torch.allclose(parameter.grad, plain.get_parameter(name).grad, atol=1e-9), name
    for mine, theirs in zip(inputs[::2], inputs[1::2], strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-10)


def twins(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.randn(*shape, dtype=torch.float64) + 3  # features have a mean
    return one.requires_grad_(), one.detach().clone().requires_grad_()


@pytest.mark.parametrize("training", [True, False])
def test_tokens(training: bool) -> None:
    folding, plain = (mlp.train(training) for mlp in folding_and_plain(4, 32, 3))
    one, two = twins(8, 16, 4)
    assert folding._folds(one.flatten(0, 1))
    assert_same(folding, plain, folding(one), plain(two), one, two)


@pytest.mark.parametrize("training", [True, False])
def test_the_loss(training: bool) -> None:
    folding, plain = (mlp.train(training) for mlp in folding_and_plain(4, 32, 3))
    one, two = twins(8, 16, 4)
    target = torch.randn(8, 16, 3, dtype=torch.float64)
    losses = (mlp.loss(x, target, normalised_mse) for mlp, x in ((folding, one), (plain, two)))
    assert_same(folding, plain, *losses, one, two)


@pytest.mark.parametrize("training", [True, False])
def test_aggregated_features(training: bool) -> None:
    folding, plain = (mlp.train(training) for mlp in folding_and_plain(16, 24, 3))
    one, two = twins(6, 2, 16)
    scores, others = twins(6, 2, 16)
    outs = [
        mlp.forward_aggregated(x, softmax_maps(s), 2)
        for mlp, x, s in ((folding, one, scores), (plain, two, others))
    ]
    slow = copy.deepcopy(plain)(aggregate(two, softmax_maps(others), 2))
    assert torch.allclose(outs[0], slow, atol=1e-10)
    assert_same(folding, plain, *outs, one, two, scores, others)


def test_a_mean_far_from_zero_costs_the_variance_no_digits() -> None:
    folding, plain = (mlp.float().train() for mlp in folding_and_plain(8, 16, 4))
    features = 100 + torch.randn(32, 2, 8)
    maps = softmax_maps(torch.randn(32, 2, 16))
    fast = folding.forward_aggregated(features, maps, 2)
    slow = plain.double().forward_aggregated(features.double(), maps.double(), 2)
    assert torch.allclose(fast.double(), slow, atol=2e-3)


def test_norms_in_groups_are_not_folded() -> None:
    from lewel.nn.norm import normalise_in_groups

    mlp = MLP(4, 32, 3)
    normalise_in_groups(mlp, 4)
    assert not mlp._can_fold(torch.randn(64, 4))
