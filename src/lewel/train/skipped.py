"""Steps that the gradient scaler of 16-bit training skips: noticed and undone on the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lewel.nn.rows import large_buffers, recorded_changes
from lewel.nn.trainable import Trainable
from lewel.train.fabric import Fabric


def step_unless_infinite(fabric: Fabric, optimizer: Any) -> Tensor | None:
    """Step the optimiser -> whether the gradient scaler of 16-bit training skipped the step.

    A bool on the device, so that nothing waits for it; None without a scaler.
    """
    scaler = getattr(fabric._precision, "scaler", None)
    before = None if scaler is None else scaler._get_scale_async().clone()
    optimizer.step()
    return None if scaler is None else scaler._get_scale_async() < before


@contextmanager
def undone_where(skipped: Tensor | None, method: Trainable) -> Iterator[None]:
    """Undo what `after_step` changes where the step was skipped, without waiting for the device.

    Queues and memory banks record the rows that they change. All else that is not trained, such as
    a teacher, is copied before.
    """
    hooked = type(method).after_step is not Trainable.after_step
    if skipped is None or not hooked:
        yield
        return
    frozen = [p for p in method.parameters() if not p.requires_grad]
    by_rows = {id(buffer) for buffer in large_buffers(method)}
    buffers = [buffer for buffer in method.buffers() if id(buffer) not in by_rows]
    tensors = [tensor.detach() for tensor in (*frozen, *buffers)]
    before = [tensor.clone() for tensor in tensors]
    with recorded_changes() as changes:
        yield
    with torch.no_grad():
        for tensor, places, rows in reversed(changes):
            if places is None:
                tensor.copy_(torch.where(skipped, rows, tensor))
            else:
                tensor[places] = torch.where(skipped, rows, tensor[places])
    for tensor, old in zip(tensors, before, strict=True):
        torch.where(skipped, old, tensor, out=tensor)
