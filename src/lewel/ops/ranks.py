"""Collectives over the ranks of a run; with one rank each returns its input."""

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Item = TypeVar("Item")


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
    parts = [torch.empty_like(rows) for _ in range(ranks())]
    dist.all_gather(parts, rows)
    return torch.cat(parts)


def local_chunk(rows: Tensor) -> Tensor:
    """This rank's chunk (B, ...) of rows (R B, ...)."""
    return rows.chunk(ranks())[rank()]


@torch.no_grad()
def from_rank_0(tensor: Tensor) -> Tensor:
    """Broadcast a tensor from rank 0."""
    if ranks() > 1:
        dist.broadcast(tensor, 0)
    return tensor


@torch.no_grad()
def mean_over_ranks(tensor: Tensor) -> Tensor:
    """The mean of a tensor over the ranks."""
    if ranks() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total / ranks()


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


def leave() -> None:
    """Destroy the process group, after a barrier.

    Its threads must end before the process does, or the process may abort (SIGABRT).
    """
    if ranks() > 1:
        dist.barrier()
        dist.destroy_process_group()
