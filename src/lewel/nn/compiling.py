"""torch.compile for the backbones, where the machine can."""

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lewel.nn.backbone import Backbone


def compile_backbones(network: nn.Module, device: torch.device, say: Callable[[str], None]) -> bool:
    """Compile every backbone inside a network in place, names and weights as they were.

    A small trial comes first: where there is no compiler for the device, that is said, and the
    network stays as it is. What cannot be compiled later runs as it would without, and is said too.
    """
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # "no CUDA": no news
    try:
        sample = torch.ones(64, device=device, requires_grad=True)
        torch.compile(_trial)(sample).backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever the compilers of a machine may raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        say(f"torch.compile does not work here, so nothing is compiled: {reason[0]}")
        return False
    torch._dynamo.config.suppress_errors = True
    log = logging.getLogger("torch._dynamo.convert_frame")
    for older in [one for one in log.filters if isinstance(one, _Sentence)]:
        log.removeFilter(older)  # of another run in this process, which has had its say
    log.addFilter(_Sentence(say))
    for module in network.modules():
        if isinstance(module, Backbone):
            module.compile()
    return True


def _trial(values: Tensor) -> Tensor:
    return (values * 2).relu().sum()


class _Sentence(logging.Filter):
    """Says once, in a sentence, what torch would log with a traceback: a part was not compiled."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self.say, self.said = say, False

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.startswith("WON'T CONVERT"):
            return True
        if not self.said:
            reasons = [
                line for line in text.splitlines() if "Error: " in line or "Failed: " in line
            ]
            reason = reasons[-1].strip() if reasons else text.splitlines()[0]
            self.say(f"torch.compile failed, so the backbone runs as it is: {reason}")
            self.said = True
        return False
