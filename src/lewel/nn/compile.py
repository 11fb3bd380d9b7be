"""torch.compile for the backbones, where it works."""

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lewel.nn.backbone import Backbone


def compile_backbones(
    network: nn.Module, device: torch.device, report: Callable[[str], None]
) -> bool:
    """Compile every backbone of a network in place; state_dict keys and weights stay.

    A small function is compiled first: where that fails, a message is printed and the network
    stays uncompiled. A backbone that fails to compile later runs eagerly, with a message too.
    """
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # "no CUDA"
    try:
        sample = torch.ones(64, device=device, requires_grad=True)
        torch.compile(_trial)(sample).backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # compilers raise errors of any type
        reason = str(error).strip().splitlines() or [type(error).__name__]
        report(f"torch.compile does not work here, so nothing is compiled: {reason[0]}")
        return False
    torch._dynamo.config.suppress_errors = True
    log = logging.getLogger("torch._dynamo.convert_frame")
    for older in [one for one in log.filters if isinstance(one, _ReportFailure)]:
        log.removeFilter(older)  # of an earlier run in this process
    log.addFilter(_ReportFailure(report))
    for module in network.modules():
        if isinstance(module, Backbone):
            module.compile()
    return True


def _trial(values: Tensor) -> Tensor:
    return (values * 2).relu().sum()


class _ReportFailure(logging.Filter):
    """Reports a failed compilation once, in one line instead of torch's traceback."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self.report, self.reported = report, False

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.startswith("WON'T CONVERT"):
            return True
        if not self.reported:
            reasons = [
                line for line in text.splitlines() if "Error: " in line or "Failed: " in line
            ]
            reason = reasons[-1].strip() if reasons else text.splitlines()[0]
            self.report(f"torch.compile failed, so the backbone runs uncompiled: {reason}")
            self.reported = True
        return False
