"""SGD with momentum, alone or with the gradient scaler of 16-bit training."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import SGD, Optimizer


def make_sgd(
    params: Iterable[Any],
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    fused: bool = False,
    scaled: bool = False,
) -> SGD:
    """SGD; the learning rate is set before each step.

    With a gradient scaler (`scaled`) it is fused: it takes the scale on the device, so that no step
    waits for it.
    """
    optimizer = SGD(
        params, lr=0.0, momentum=momentum, weight_decay=weight_decay, fused=fused or scaled
    )
    if scaled:
        optimizer.register_step_pre_hook(_zero_momentum)
    return optimizer


def _zero_momentum(optimizer: Optimizer, *_: Any) -> None:
    """Fused SGD would leave uninitialised memory where the scaler skips the first step."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None and group["momentum"]:
                state = optimizer.state[weight]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(weight)
