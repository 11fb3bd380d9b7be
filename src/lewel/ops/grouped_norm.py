"""Batch norm of a batch in groups, without copies of the activations.

Where the groups alternate along the batch, (B, C, ...) is also (B/G, G C, ...): one batch norm over
channels x groups. That is free for contiguous tensors. Where a group is a part of the batch, each
part is normalised where it lies.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Running = tuple[Tensor, Tensor] | None  # mean and variance
Maybe = Tensor | None


def grouped_batch_norm(
    tokens: Tensor,
    groups: int,
    running: Running,
    weight: Maybe,
    bias: Maybe,
    momentum: float,
    eps: float,
) -> Tensor:
    """Tokens (B, C, ...) normalised in groups of consecutive samples by their own statistics.

    The running mean and variance (C,) become the mean over the groups, as if ranks averaged them.
    """
    rows = _repeated(running, groups)
    out: Tensor = _GroupedBatchNorm.apply(tokens, weight, bias, rows, groups, momentum, eps)
    _set_to_means(running, rows)
    return out


def alternating_batch_norm(
    tokens: Tensor, groups: int, running: Running, weight: Maybe, bias: Maybe, *rest: float
) -> Tensor:
    """The same where sample n of the batch (B, C, ...) is in group n mod G; rest: momentum, eps."""
    rows = _repeated(running, groups)
    mean, variance = (None, None) if rows is None else (one.flatten() for one in rows)
    scale, shift = (None if one is None else one.repeat(groups) for one in (weight, bias))
    wide = tokens.reshape(len(tokens) // groups, -1, *tokens.shape[2:])  # (B/G, G C, ...)
    out = F.batch_norm(wide, mean, variance, scale, shift, True, *rest)
    _set_to_means(running, rows)
    # For autograd no view: a ReLU in place on a view would copy its gradient.
    shaped: Tensor = torch.ops.aten._unsafe_view(out, tokens.shape)
    return shaped


def alternate(samples: Tensor, groups: int) -> Tensor:
    """Samples (B, ...) of consecutive groups in an order in which the groups alternate."""
    return samples.reshape(groups, -1, *samples.shape[1:]).transpose(0, 1).flatten(0, 1)


def consecutive(samples: Tensor, groups: int) -> Tensor:
    """The inverse of `alternate`."""
    return samples.reshape(-1, groups, *samples.shape[1:]).transpose(0, 1).flatten(0, 1)


def _repeated(running: tuple[Tensor, Tensor] | None, groups: int) -> list[Tensor] | None:
    """Running statistics of each group, (G, C) each."""
    return None if running is None else [one.expand(groups, -1).clone() for one in running]


def _set_to_means(running: tuple[Tensor, Tensor] | None, rows: list[Tensor] | None) -> None:
    if running is not None and rows is not None:
        for mine, values in zip(running, rows, strict=True):
            mine.copy_(values.mean(0))


class _GroupedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        rows: list[Tensor] | None,
        groups: int,
        momentum: float,
        eps: float,
    ) -> Tensor:
        out = torch.empty_like(tokens)
        like = weight if weight is not None else tokens if rows is None else rows[0]
        saved = tokens.new_empty(2, groups, tokens.shape[1], dtype=like.dtype)  # statistics
        known = ((None,) * groups,) * 2 if rows is None else (one.unbind() for one in rows)
        batches = (one.chunk(groups) for one in (tokens, out))
        parts = zip(*known, *batches, *map(Tensor.unbind, saved), strict=True)
        for mean, variance, part, *outputs in parts:
            torch.native_batch_norm(
                part, weight, bias, mean, variance, True, momentum, eps, out=outputs
            )
        ctx.save_for_backward(tokens, weight, saved)
        ctx.eps, ctx.wanted = eps, [True, weight is not None, bias is not None]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight, saved = ctx.saved_tensors
        groups = saved.shape[1]
        for_tokens, sums = torch.empty_like(tokens), []
        batches = (one.chunk(groups) for one in (slope, tokens, for_tokens))
        parts = zip(*batches, *map(Tensor.unbind, saved), strict=True)
        for above, part, below, mean, scale in parts:
            found, *others = torch.ops.aten.native_batch_norm_backward(
                above, part, weight, None, None, mean, scale, True, ctx.eps, ctx.wanted
            )
            below.copy_(found)  # at once: all groups' gradients beside it would be a copy more
            sums.append(others)
        for_weight, for_bias = (
            torch.stack(rows).sum(0) if wanted else None
            for rows, wanted in zip(zip(*sums, strict=True), ctx.wanted[1:], strict=True)
        )
        return for_tokens, for_weight, for_bias, None, None, None, None
