"""LARS: SGD with a learning rate scaled by each layer's weight norm."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling after You et al. (2017), with the lr inside the momentum.

    For weights w with gradient g and weight decay c, v <- m v + lr t (g + c w) and w <- w - v. The
    trust ratio t = eta |w| / (|g| + c |w|), and 1 where a norm is 0 or the group is not adapted.
    No value is read back from the device.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "adapt": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(params, group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [p.grad for p in params if p.grad is not None]
        velocities = [self._velocity(p) for p in params]
        decay = group["weight_decay"]
        if group["adapt"]:
            weight_norms = torch.stack(torch._foreach_norm(params))
            gradient_norms = torch.stack(torch._foreach_norm(gradients))
            trusts = group["trust"] * weight_norms / (gradient_norms + decay * weight_norms)
            usable = (weight_norms > 0) & (gradient_norms > 0)
            rates = (torch.where(usable, trusts, 1.0) * group["lr"]).unbind()
        updates = torch._foreach_add(gradients, params, alpha=decay) if decay else gradients
        if group["adapt"]:
            updates = torch._foreach_mul(updates, rates)
        else:
            updates = torch._foreach_mul(updates, group["lr"])
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, updates)
        torch._foreach_sub_(params, velocities)

    def _velocity(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity: Tensor = state["momentum_buffer"]
        return velocity
