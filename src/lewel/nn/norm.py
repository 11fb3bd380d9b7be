"""Batch norm over ranks, and in groups of the batch: on one device, what many devices do."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lewel.ops.ranks import mean_over_ranks, ranks


def normalise_in_groups(network: nn.Module, groups: int) -> bool:
    """Let every batch norm take its statistics in so many parts of the global batch.

    A rank is a part by itself, or several. True where there is more than one part in all.
    """
    mine = max(1, groups // ranks())
    if mine > 1:
        for module in network.modules():
            if isinstance(module, _BatchNorm):
                module.__class__ = _grouped(type(module))  # type: ignore[arg-type]
                module.groups = mine  # type: ignore[assignment]
    return groups > 1 or ranks() > 1


def synchronise(network: nn.Module) -> None:
    """Let every batch norm take its statistics over all GPUs."""
    from timm.layers.norm_act import convert_sync_batchnorm

    # timm's: torch's own would lose the activations that some of timm's norms hold.
    convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]


@torch.no_grad()
def average_statistics(network: nn.Module) -> None:
    """Give all ranks the mean of their batch norm statistics, in one message."""
    if ranks() == 1:
        return
    statistics = [
        buffer
        for module in network.modules()
        if isinstance(module, _BatchNorm)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if not statistics:
        return
    means = mean_over_ranks(torch.cat([buffer.flatten() for buffer in statistics]))
    parts = torch.split(means, [buffer.numel() for buffer in statistics])
    torch._foreach_copy_(statistics, [p.view_as(b) for p, b in zip(parts, statistics, strict=True)])


@contextmanager
def precise_statistics(network: nn.Module) -> Iterator[None]:
    """Forwards inside give every batch norm the plain mean of their statistics (PreciseBN)."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momenta, was_training = [norm.momentum for norm in norms], network.training
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for a cumulative mean
    network.train()
    try:
        yield
    finally:
        network.train(was_training)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    average_statistics(network)


class _Grouped(_BatchNorm):
    """A batch norm whose input (B, C, ...) is cut along B into consecutive groups for training.

    The running statistics become the mean over the groups, as if ranks averaged them.
    """

    groups: int

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.training:
            return super().forward(tokens)
        own = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        seen, out = [], []
        for part in tokens.chunk(self.groups):
            # Copies: autograd keeps those that a group was normalised with.
            self._buffers.update({name: buffer.clone() for name, buffer in own.items()})
            out.append(super().forward(part))
            seen.append([self._buffers[name] for name in own])
        self._buffers.update(own)
        for buffer, values in zip(own.values(), zip(*seen, strict=True), strict=True):
            mean = torch.stack(values).mean(0) if buffer.is_floating_point() else values[0]
            buffer.copy_(mean)
        return torch.cat(out)


@cache
def _grouped(kind: type[_BatchNorm]) -> type[_Grouped]:
    """Any kind of batch norm (timm's hold an activation too), in groups."""
    return type(f"Grouped{kind.__name__}", (_Grouped, kind), {})
