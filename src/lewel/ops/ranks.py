"""Collectives over the ranks of a run; with one rank each returns its input."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Item = TypeVar("Item")

MEETING = 0.5  # seconds between two checks for the other ranks
BEAT = 20.0  # seconds between two messages of rank 0, far below any collective's timeout


def ranks() -> int:
    """The number of ranks (world size)."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The rank of this process."""
    return dist.get_rank() if ranks() > 1 else 0


@torch.no_grad()
def gather(rows: Tensor) -> Tensor:
    """All-gather of rows (B, ...) in the order of the ranks, (R B, ...); without gradient."""
    if ranks() == 1:
        return rows
    rows = rows.contiguous()
    out = rows.new_empty(ranks() * len(rows), *rows.shape[1:])
    dist.all_gather_into_tensor(out, rows)
    return out


class _Gather(torch.autograd.Function):
    """`gather`, whose backward sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return gather(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return local_chunk(sum_over_ranks(gradient))


def gather_with_gradient(rows: Tensor) -> Tensor:
    """`gather` with a gradient, that of the sum of all ranks' losses.

    DDP divides it by the number of ranks. So each rank's loss is the mean over its own rows, or
    the same loss of all rows on every rank: both give the gradient of a single rank.
    """
    if ranks() == 1:
        return rows
    out: Tensor = _Gather.apply(rows)
    return out


class _Sum(torch.autograd.Function):
    """`sum_over_ranks`, whose backward sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return sum_over_ranks(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return sum_over_ranks(gradient)


def sum_with_gradient(tensor: Tensor) -> Tensor:
    """The sum of a tensor over the ranks with a gradient, as that of `gather_with_gradient`."""
    if ranks() == 1:
        return tensor
    out: Tensor = _Sum.apply(tensor)
    return out


@torch.no_grad()
def gather_to_rank_0(rows: Tensor) -> list[Tensor]:
    """The rows (B, ...) of each rank, on rank 0; an empty list on the others."""
    if ranks() == 1:
        return [rows]
    rows = rows.contiguous()
    parts = [torch.empty_like(rows) for _ in range(ranks())] if rank() == 0 else []
    dist.gather(rows, parts or None)
    return parts


def on_rank_0(work: Callable[[Callable[[], None]], Item], device: torch.device) -> Item:
    """The result of work(beat) on all ranks; only rank 0 runs it.

    `work` calls beat() often: the others wait for these, so that no collective times out.
    """
    if ranks() == 1:
        return work(lambda: None)
    out: list[Item | None] = [None]
    if rank() == 0:
        last = time.monotonic()

        def beat() -> None:
            nonlocal last
            if time.monotonic() - last > BEAT:
                highest([0], device)
                last = time.monotonic()

        out = [work(beat)]
        highest([1], device)
    else:
        while highest([0], device) == [0]:
            pass
    dist.broadcast_object_list(out, 0)
    return out[0]  # type: ignore[return-value]


def local_chunk(rows: Tensor) -> Tensor:
    """This rank's chunk (B, ...) of rows (R B, ...)."""
    return rows.chunk(ranks())[rank()]


def own_rows(total: int, device: torch.device) -> Tensor:
    """Which of all ranks' rows is which of this rank's: bool (B, R B), one in each row."""
    return local_chunk(torch.eye(total, dtype=torch.bool, device=device))


def own_part(rows: Tensor) -> Tensor:
    """This rank's part of rows (n, ...) that all ranks have, where n need not divide by them."""
    size = -(-len(rows) // ranks())
    return rows[rank() * size : (rank() + 1) * size]


@torch.no_grad()
def gather_parts(part: Tensor, total: int) -> Tensor:
    """The rows (n, ...) whose parts `own_part` gave to the ranks."""
    size = -(-total // ranks())
    missing = part.new_zeros(size - len(part), *part.shape[1:])
    return gather(torch.cat([part, missing]))[:total]


@torch.no_grad()
def from_rank_0(tensor: Tensor) -> Tensor:
    """Broadcast a tensor from rank 0."""
    if ranks() > 1:
        dist.broadcast(tensor, 0)
    return tensor


@torch.no_grad()
def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of a tensor over the ranks, without gradient."""
    if ranks() == 1:
        return tensor
    total = _copy(tensor)
    dist.all_reduce(total)
    return total


def _copy(tensor: Tensor) -> Tensor:
    """A copy that NCCL takes: it refuses tensors that are not contiguous, which gloo accepts."""
    return tensor.clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def mean_over_ranks(tensor: Tensor) -> Tensor:
    """The mean of a tensor over the ranks."""
    return tensor if ranks() == 1 else sum_over_ranks(tensor) / ranks()


@torch.no_grad()
def max_over_ranks(tensor: Tensor) -> Tensor:
    """The maximum of each element over the ranks."""
    if ranks() == 1:
        return tensor
    most = _copy(tensor)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most


@torch.no_grad()
def highest(numbers: list[int], device: torch.device) -> list[int]:
    """The maximum of each number over the ranks; with several ranks it waits for the device."""
    if ranks() == 1:
        return numbers
    tensor = torch.tensor(numbers, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return [int(number) for number in tensor.tolist()]


def gather_objects(items: list[Item]) -> list[Item]:
    """All-gather of Python objects: one list, in the order of the ranks."""
    if ranks() == 1:
        return items
    parts: list[list[Item]] = [[] for _ in range(ranks())]
    dist.all_gather_object(parts, items)
    return [item for part in parts for item in part]


def meet(where: str) -> None:
    """Wait until all ranks have come here, for any time: a collective would time out."""
    if ranks() == 1:
        return
    store = dist.distributed_c10d._get_default_store()
    store.set(f"lewel/{where}/{rank()}", "here")
    while not store.check([f"lewel/{where}/{other}" for other in range(ranks())]):
        time.sleep(MEETING)


def made_on_rank_0(make: Callable[[], Item], where: str) -> Item:
    """What rank 0 makes, on all ranks; the others wait for any time."""
    if ranks() == 1:
        return make()
    out: list[Item | None] = [make() if rank() == 0 else None]
    meet(where)
    dist.broadcast_object_list(out, 0)
    return out[0]  # type: ignore[return-value]


def leave() -> None:
    """Destroy the process group, after a barrier.

    Its threads must end before the process does, or the process may abort (SIGABRT).
    """
    if ranks() > 1:
        dist.barrier()
        dist.destroy_process_group()
