"""LARS against the update written out for one tensor at a time in float64."""

import pytest
import torch
from torch import nn

from lewel.optim.groups import parameter_groups
from lewel.optim.lars import LARS


def slow_lars(
    w: torch.Tensor, g: torch.Tensor, v: torch.Tensor, *, lr: float, decay: float
) -> None:
    norm_w, norm_g = w.norm().item(), g.norm().item()
    trust = 1e-3 * norm_w / (norm_g + decay * norm_w) if norm_w > 0 and norm_g > 0 else 1.0
    v.mul_(0.9).add_(lr * trust * (g + decay * w))
    w.sub_(v)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_equals_the_update_written_out(decay: float) -> None:
    fast = [nn.Parameter(torch.randn(4, 3, dtype=torch.float64)) for _ in range(3)]
    fast.append(nn.Parameter(torch.zeros(5, dtype=torch.float64)))  # norm 0: trust is 1
    slow = [p.detach().clone() for p in fast]
    velocity = [torch.zeros_like(p) for p in slow]
    optimizer = LARS(fast, lr=0.5, weight_decay=decay)
    for lr in (0.5, 0.2, 0.1):
        optimizer.param_groups[0]["lr"] = lr
        for index, parameter in enumerate(fast):
            parameter.grad = torch.randn_like(parameter) * (index != 1)  # one gradient is 0
        for w, p, v in zip(slow, fast, velocity, strict=True):
            slow_lars(w, p.grad.clone(), v, lr=lr, decay=decay)
        optimizer.step()
        for w, p in zip(slow, fast, strict=True):
            assert torch.allclose(w, p, atol=1e-12)


def test_groups_that_are_not_adapted_take_plain_momentum_steps() -> None:
    ours, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
    lars = LARS([{"params": [ours], "adapt": False}], lr=0.1)
    sgd = torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    for _ in range(3):
        ours.grad, theirs.grad = torch.full((3,), 0.5), torch.full((3,), 0.5)
        lars.step()
        sgd.step()
    assert torch.allclose(ours, theirs)


def test_gradients_are_left_as_they_are() -> None:
    parameter = nn.Parameter(torch.randn(3))
    parameter.grad = torch.ones(3)
    LARS([parameter], lr=1.0, weight_decay=0.1).step()
    assert torch.equal(parameter.grad, torch.ones(3))


@pytest.mark.parametrize("adapt", [True, False])
def test_a_gradient_scaler_is_followed_on_the_device(
    monkeypatch: pytest.MonkeyPatch, adapt: bool
) -> None:
    """The same numbers as with gradients unscaled, and steps skipped, on the host."""

    class OnHost(LARS):
        _step_supports_amp_scaling = False

    first = torch.randn(4, 3)
    weights = [nn.Parameter(first.clone()) for _ in range(2)]
    group = {"lr": 0.3, "weight_decay": 0.1}
    ours, theirs = (
        kind([{"params": [weight], "adapt": adapt}], **group)
        for kind, weight in zip((LARS, OnHost), weights, strict=True)
    )
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2) for _ in "12"]
    reads: list[str] = []
    for name in ("item", "tolist", "__float__", "__bool__", "__int__"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda one, n=name, r=real: reads.append(n) or r(one)
        )
    for value in (torch.inf, 1.0, 0.5, torch.nan, 2.0):
        gradient = torch.randn(4, 3) * value
        for scaler, optimizer, weight in zip(scalers, (ours, theirs), weights, strict=True):
            weight.grad = scaler.scale(gradient)
            reads.clear()
            scaler.step(optimizer)
            scaler.update()
            assert len(reads) == (optimizer is theirs)
        assert torch.equal(*weights) and torch.isfinite(weights[0]).all()
    velocities = [next(iter(one.state.values()))["momentum_buffer"] for one in (ours, theirs)]
    assert torch.equal(*velocities)
    assert not torch.equal(weights[0], first)


def test_groups_go_by_module_type() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 2), nn.LayerNorm(2))
    model[2].weight.requires_grad_(False)
    decayed, exempt = parameter_groups(model, 0.1, exclude_bias_and_norm=True)
    assert [id(p) for p in decayed["params"]] == [id(model[0].weight)]
    assert len(exempt["params"]) == 6
    assert (exempt["weight_decay"], exempt["adapt"]) == (0.0, False)
    (everything,) = parameter_groups(model, 0.1, exclude_bias_and_norm=False)
    assert len(everything["params"]) == 7
