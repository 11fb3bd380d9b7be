"""Assertions that tests of methods share: against a slow reference, and bit for bit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lewel.methods.base import Method, Step


def assert_equals_reference(step: Step, method: Method, slow: Tensor, twin: Method) -> None:
    """Loss and gradients after both backward passes are equal to 1e-9."""
    assert abs(step.loss.item() - slow.item()) < 1e-9
    for (name, fast), other in zip(method.named_parameters(), twin.parameters(), strict=True):
        if fast.requires_grad:
            assert torch.allclose(fast.grad, other.grad, atol=1e-9, rtol=1e-9), name


def assert_trains_alike(
    pair: list[Method], draw: Callable[[], Any], steps: int, *, seeded: bool = False
) -> None:
    """Losses and state of two methods stay bit-equal over some steps of SGD.

    With `seeded` both draw the same random numbers in a step.
    """
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in pair]
    for step in range(steps):
        images, losses = draw(), []
        for method, optimizer in zip(pair, optimizers, strict=True):
            if seeded:
                torch.manual_seed(step)
            out = method(images)
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            method.after_step(step / steps, out.keys)
            losses.append(out.loss)
        assert torch.equal(*losses)
    for one, other in zip(*(m.state_dict().values() for m in pair), strict=True):
        assert torch.equal(one, other)
