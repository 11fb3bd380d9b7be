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
    No value is read back from the device: `grad_scale` and `found_inf` of a gradient scaler, which
    sets them before a step, stay there too. Where `found_inf` is not 0 the step changes nothing.
    """

    _step_supports_amp_scaling = True
    grad_scale: Tensor | None
    found_inf: Tensor | None

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
        decay, rate, momentum = group["weight_decay"], group["lr"], group["momentum"]
        keep = self._unscale(gradients)
        if keep is not None:
            rate, momentum = rate * keep, torch.where(keep > 0, momentum * keep, 1.0)
        if group["adapt"]:
            weight_norms = torch.stack(torch._foreach_norm(params))
            gradient_norms = torch.stack(torch._foreach_norm(gradients))
            trusts = group["trust"] * weight_norms / (gradient_norms + decay * weight_norms)
            usable = (weight_norms > 0) & (gradient_norms > 0)
            rates = (torch.where(usable, trusts, 1.0) * rate).unbind()
        updates = torch._foreach_add(gradients, params, alpha=decay) if decay else gradients
        updates = torch._foreach_mul(updates, rates if group["adapt"] else rate)
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, updates)
        moves = velocities if keep is None else torch._foreach_mul(velocities, keep)
        torch._foreach_sub_(params, moves)

    def _unscale(self, gradients: list[Tensor]) -> Tensor | None:
        """Unscale in place -> 1 to take the step, 0 to skip it; None without a scaler."""
        scale: Tensor | None = getattr(self, "grad_scale", None)
        found: Tensor | None = getattr(self, "found_inf", None)
        if found is None:
            return None
        if scale is not None:
            inverse = scale.double().reciprocal().to(scale.dtype)  # as GradScaler.unscale_
            torch._foreach_mul_(gradients, inverse)
        skip = found > 0
        for gradient in gradients:
            gradient.masked_fill_(skip, 0.0)  # a product with 0 would leave infinity a NaN
        return (~skip).to(gradients[0].dtype)

    def _velocity(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity: Tensor = state["momentum_buffer"]
        return velocity
