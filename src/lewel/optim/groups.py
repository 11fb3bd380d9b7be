"""Parameter groups: biases and norm layers apart, by the type of their module."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.SyncBatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.InstanceNorm2d,
)


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate or weight decay of their own."""

    parameters: Sequence[nn.Parameter]
    lr_scale: float = 1.0  # times the learning rate
    anneal: bool = True  # False: after the warm-up the learning rate stays at its peak
    frozen_steps: int = 0  # not trained in the first steps
    weight_decay: float | None = None  # None: the optimiser's

    def settings(self) -> dict[str, Any]:
        """What differs from the other parameters, as keys of an optimiser's group."""
        values = {
            "lr_scale": self.lr_scale,
            "anneal": self.anneal,
            "frozen_steps": self.frozen_steps,
        }
        usual = {"lr_scale": 1.0, "anneal": True, "frozen_steps": 0}
        return {name: value for name, value in values.items() if value != usual[name]}


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    exclude_bias_and_norm: bool,
    declared: Sequence[Group] = (),
) -> list[dict[str, Any]]:
    """All trainable parameters of a model; with `exclude_bias_and_norm` in two groups.

    The second group (biases, norm layers) has no weight decay and no LARS adaptation (`adapt`).
    Each of the `declared` groups is divided likewise.
    """
    owner = {id(p): number for number, group in enumerate(declared) for p in group.parameters}
    everyone: list[list[list[nn.Parameter]]] = [[[], []] for _ in range(len(declared) + 1)]
    for parameter, is_small in _trainable(model):
        number = owner.get(id(parameter), -1) + 1  # 0 are the parameters that no group declares
        everyone[number][int(exclude_bias_and_norm and is_small)].append(parameter)
    groups: list[dict[str, Any]] = []
    for group, (weights, exempt) in zip((None, *declared), everyone, strict=True):
        decay, extra = weight_decay, dict[str, Any]()
        if group is not None:
            decay = weight_decay if group.weight_decay is None else group.weight_decay
            extra = group.settings()
        if weights or group is None:
            groups.append({"params": weights, "weight_decay": decay, "adapt": True, **extra})
        if exempt:
            groups.append({"params": exempt, "weight_decay": 0.0, "adapt": False, **extra})
    return groups


def biases_and_norms(model: nn.Module) -> list[nn.Parameter]:
    """The trainable biases and parameters of norm layers."""
    return [parameter for parameter, is_small in _trainable(model) if is_small]


def _trainable(model: nn.Module) -> Iterator[tuple[nn.Parameter, bool]]:
    """Trainable parameters, and whether each is a bias or belongs to a norm layer."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                # Custom layers of other networks: their scales and offsets are vectors or bias.
                small = "bias" in name or parameter.ndim <= 1 or isinstance(module, NORMS)
                yield parameter, small
