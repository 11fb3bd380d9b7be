"""Peak memory of a step, counted at the allocator and so reproducible."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@contextmanager
def _silent() -> Iterator[None]:
    """Silence stderr, where the profiler warns that there is no GPU."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def kept_bytes(module: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of parameters, buffers and optimiser state, which persist between steps."""
    state = [x for s in optimizer.state.values() for x in s.values() if isinstance(x, Tensor)]
    return sum(x.nbytes for x in (*module.parameters(), *module.buffers(), *state))


def peak_bytes(step: Callable[[], Any], device: torch.device) -> int:
    """Peak bytes that a step allocates, besides those allocated before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        _silent(),
        torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as p,
    ):
        step()
    results: Any = p.profiler
    now = most = 0
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
