"""What the ranks of a run tell each other. With one rank, each function gives back what it got."""

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Thing = TypeVar("Thing")


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process among them."""
    return dist.get_rank() if ranks() > 1 else 0


@torch.no_grad()
def gather(rows: Tensor) -> Tensor:
    """The rows (B, ...) of all ranks in their order, (R B, ...); no gradient passes."""
    if ranks() == 1:
        return rows
    rows = rows.contiguous()
    parts = [torch.empty_like(rows) for _ in range(ranks())]
    dist.all_gather(parts, rows)
    return torch.cat(parts)


def share(rows: Tensor) -> Tensor:
    """This rank's part of rows (R B, ...), (B, ...)."""
    return rows.chunk(ranks())[rank()]


@torch.no_grad()
def from_first(tensor: Tensor) -> Tensor:
    """What the first rank holds, on every rank."""
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
    """The highest of each number over the ranks; waits for the device where there are several."""
    if ranks() == 1:
        return numbers
    tensor = torch.tensor(numbers, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return [int(number) for number in tensor.tolist()]


def gather_things(things: list[Thing]) -> list[Thing]:
    """The things of all ranks in one list, in the order of the ranks."""
    if ranks() == 1:
        return things
    parts: list[list[Thing]] = [[] for _ in range(ranks())]
    dist.all_gather_object(parts, things)
    return [thing for part in parts for thing in part]


def leave() -> None:
    """Part from the other ranks once all are ready to.

    The threads that connect them must end before the process does, or it may end by SIGABRT.
    """
    if ranks() > 1:
        dist.barrier()
        dist.destroy_process_group()
