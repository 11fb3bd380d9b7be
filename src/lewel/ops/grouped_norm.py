"""Batch norm of a batch in groups, without copies of the activations.

Where the groups alternate along the batch, (B, C, ...) is also (B/G, G C, ...): one batch norm over
channels x groups. That is free for contiguous tensors. Where a group is a part of the batch,
it is normalised where it lies.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Running = tuple[Tensor, Tensor] | None  # mean and variance
Maybe = Tensor | None

_aten = torch.ops.aten


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
    each = tokens.numel() // (groups * tokens.shape[1])
    if len(tokens) % groups or each < 2:
        raise ValueError(
            f"{tuple(tokens.shape)} in {groups} groups: batch norm needs equal groups "
            "of two values or more a channel"
        )
    tensors = (tokens, weight, bias, *(running or ()))
    kinds = {one.dtype for one in tensors if one is not None}
    # CUDA's sums need a weight, and in 16 bits the gradient would need a copy in 32.
    full = tokens.device.type == "cpu" and kinds in ({torch.float32}, {torch.float64})
    norm = _AllGroups if full and not torch.compiler.is_compiling() else _GroupByGroup
    out: Tensor = norm.apply(tokens, weight, bias, running, groups, momentum, eps)
    return out


def alternating_batch_norm(
    tokens: Tensor,
    groups: int,
    running: Running,
    weight: Maybe,
    bias: Maybe,
    momentum: float,
    eps: float,
) -> Tensor:
    """The same where sample n of the batch (B, C, ...) is in group n mod G."""
    rows = [_in_turn(one, groups) for one in running or ()]
    mean, variance = rows or (None, None)
    scale, shift = (None if one is None else _in_turn(one, groups) for one in (weight, bias))
    wide = tokens.reshape(len(tokens) // groups, -1, *tokens.shape[2:])  # (B/G, G C, ...)
    out = F.batch_norm(wide, mean, variance, scale, shift, True, momentum, eps)
    for mine, values in zip(running or (), rows, strict=True):
        torch.mean(values.view(groups, -1), 0, out=mine)
    # For autograd no view: a ReLU in place on a view would copy its gradient.
    shaped: Tensor = _aten._unsafe_view(out, tokens.shape)
    return shaped


def alternate(samples: Tensor, groups: int) -> Tensor:
    """Samples (B, ...) of consecutive groups in an order in which the groups alternate."""
    return samples.reshape(groups, -1, *samples.shape[1:]).transpose(0, 1).flatten(0, 1)


def consecutive(samples: Tensor, groups: int) -> Tensor:
    """The inverse of `alternate`."""
    return samples.reshape(-1, groups, *samples.shape[1:]).transpose(0, 1).flatten(0, 1)


def _in_turn(values: Tensor, groups: int) -> Tensor:
    """Values (C,) for the channels of each group, (G C,)."""
    if values.requires_grad and torch.is_grad_enabled():
        return values.expand(groups, -1).reshape(-1)  # its gradient is one sum
    return torch.cat([values] * groups)


class _GroupByGroup(torch.autograd.Function):
    """torch's batch norm of each group, written into a part of the batch."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: Running,
        groups: int,
        momentum: float,
        eps: float,
    ) -> Tensor:
        out = torch.empty_like(tokens)
        like = weight if weight is not None else tokens if running is None else running[0]
        saved = tokens.new_empty(2, groups, tokens.shape[1], dtype=like.dtype)
        mean, inverse = saved.unbind()  # of each group, (G, C); the inverse of the deviation
        known_mean, known_variance = running or (None, None)
        parts = zip(tokens.chunk(groups), out.chunk(groups), mean, inverse, strict=True)
        for number, (part, *outputs) in enumerate(parts):
            # Groups update the running statistics in turn, each with the same weight in the end.
            share = momentum / (groups - (groups - 1 - number) * momentum)
            known = (known_mean, known_variance, True, share, eps)
            torch.native_batch_norm(part, weight, bias, *known, out=outputs)
        ctx.save_for_backward(tokens, weight, mean, inverse)
        ctx.eps, ctx.wanted = eps, [True, weight is not None, bias is not None]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight, mean, inverse = ctx.saved_tensors
        below, sums = torch.empty_like(tokens), []
        batches = (one.chunk(len(mean)) for one in (slope, tokens, below))
        for above, part, mine, *statistics in zip(*batches, mean, inverse, strict=True):
            found, *others = _aten.native_batch_norm_backward.default(
                above, part, weight, None, None, *statistics, True, ctx.eps, ctx.wanted
            )
            mine.copy_(found)  # at once: all groups' gradients beside it would be a copy more
            sums.append(others)
        for_weight, for_bias = (
            torch.stack(rows).sum(0) if wanted else None
            for rows, wanted in zip(zip(*sums, strict=True), ctx.wanted[1:], strict=True)
        )
        return below, for_weight, for_bias, None, None, None, None


class _AllGroups(_GroupByGroup):
    """The same with another backward: the sums of each group, then one pass over the batch.

    torch's backward of a group cannot write into a part of the batch: it needs a copy.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight, mean, inverse = ctx.saved_tensors
        groups, each = len(mean), tokens.numel() // mean.numel()
        parts = zip(slope.chunk(groups), tokens.chunk(groups), mean, inverse, strict=True)
        sums = [
            _aten.native_batch_norm_backward.default(
                above, part, weight, None, None, *statistics, True, ctx.eps, [False, True, True]
            )[1:]
            for above, part, *statistics in parts
        ]
        for_weight, for_bias = map(torch.stack, zip(*sums, strict=True))  # (G, C) each
        # scale (slope - its mean - normalised tokens x the mean of slope x normalised tokens)
        scale = inverse if weight is None else inverse * weight
        down = (scale * inverse).mul_(for_weight).div_(-each)
        level = (scale * for_bias).div_(-each).addcmul_(mean, down, value=-1)
        below = torch.empty_like(tokens)
        whole = tokens.view(groups, -1, *tokens.shape[1:])  # (G, B/G, C, ...)
        inside = below.view_as(whole)
        torch.addcmul(_along(level, whole), whole, _along(down, whole), out=inside)
        inside.addcmul_(slope.view(whole.shape), _along(scale, whole))
        wanted = zip((for_weight, for_bias), ctx.wanted[1:], strict=True)
        affine = (values.sum(0) if wants else None for values, wants in wanted)
        return below, *affine, None, None, None, None


def _along(values: Tensor, tokens: Tensor) -> Tensor:
    """Values (G, C) beside tokens (G, B/G, C, ...)."""
    return values.view(len(values), 1, -1, *[1] * (tokens.dim() - 3))
