"""Parameter groups: biases and norm layers apart, by the type of their module."""

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


def parameter_groups(
    model: nn.Module, weight_decay: float, exclude_bias_and_norm: bool
) -> list[dict[str, Any]]:
    """All trainable parameters of a model; with `exclude_bias_and_norm` in two groups.

    The second group (biases, norm layers) has no weight decay and no LARS adaptation (`adapt`).
    """
    weights: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            # Custom layers of other networks: their scales and offsets are vectors or named bias.
            is_small = "bias" in name or parameter.ndim <= 1 or isinstance(module, NORMS)
            is_exempt = exclude_bias_and_norm and is_small
            (exempt if is_exempt else weights).append(parameter)
    groups = [{"params": weights, "weight_decay": weight_decay, "adapt": True}]
    if exempt:
        groups.append({"params": exempt, "weight_decay": 0.0, "adapt": False})
    return groups
