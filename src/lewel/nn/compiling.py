"""torch.compile for the backbones, where the machine can."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lewel.nn.backbone import Backbone


def compile_backbones(network: nn.Module, device: torch.device, say: Callable[[str], None]) -> bool:
    """Compile every backbone inside a network in place, names and weights as they were.

    A small trial comes first: where there is no compiler for the device, that is said, and the
    network stays as it is. What cannot be compiled in a backbone runs as it would without.
    """
    try:
        torch.compile(_trial)(torch.ones(64, device=device))
    except Exception as error:  # whatever the compilers of a machine may raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        say(f"torch.compile does not work here, so nothing is compiled: {reason[0]}")
        return False
    torch._dynamo.config.suppress_errors = True
    for module in network.modules():
        if isinstance(module, Backbone):
            module.compile()
    return True


def _trial(values: Tensor) -> Tensor:
    return (values * 2).relu().sum()
