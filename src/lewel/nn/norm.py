"""Batch norm in groups of the batch: on one device, what many devices do to a global batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def normalise_in_groups(network: nn.Module, groups: int) -> None:
    """Let every batch norm of a network take its statistics in so many parts of the batch."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.__class__ = _GROUPED[type(module)]
            module.groups = groups  # type: ignore[assignment]


class _Grouped(nn.modules.batchnorm._BatchNorm):
    """A batch norm whose input (B, C, ...) is cut along B into consecutive groups for training.

    The running statistics become the mean over the groups, as if ranks averaged them.
    """

    groups: int

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.training or self.groups == 1:
            return super().forward(tokens)
        assert self.running_mean is not None and self.running_var is not None
        parts = tokens.chunk(self.groups)
        means = self.running_mean.repeat(len(parts), 1)
        variances = self.running_var.repeat(len(parts), 1)
        momentum = 0.1 if self.momentum is None else self.momentum
        out = [
            F.batch_norm(part, mean, var, self.weight, self.bias, True, momentum, self.eps)
            for part, mean, var in zip(parts, means, variances, strict=True)
        ]
        self.running_mean.copy_(means.mean(0))
        self.running_var.copy_(variances.mean(0))
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        return torch.cat(out)


class GroupedBatchNorm1d(_Grouped, nn.BatchNorm1d):
    """Grouped statistics for (B, C)."""


class GroupedBatchNorm2d(_Grouped, nn.BatchNorm2d):
    """Grouped statistics for (B, C, H, W)."""


_GROUPED: dict[type, type] = {
    nn.BatchNorm1d: GroupedBatchNorm1d,
    nn.BatchNorm2d: GroupedBatchNorm2d,
}
