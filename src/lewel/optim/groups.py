"""Parameter groups by the type of the module that owns a parameter, not by its name."""

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
    """All trainable parameters of a model, with biases and norm layers apart where asked.

    The second group has no weight decay and is left out of LARS's adaptation (`adapt`).
    """
    weights: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            # Scales and offsets of other networks' own layers are vectors, or called biases.
            is_small = "bias" in name or parameter.ndim <= 1 or isinstance(module, NORMS)
            is_exempt = exclude_bias_and_norm and is_small
            (exempt if is_exempt else weights).append(parameter)
    groups = [{"params": weights, "weight_decay": weight_decay, "adapt": True}]
    if exempt:
        groups.append({"params": exempt, "weight_decay": 0.0, "adapt": False})
    return groups
