"""Batch norm of a batch in groups, without copies of the activations.

Where the groups alternate along the batch, (B, C, ...) is also (B/G, G C, ...): one batch norm over
channels x groups. That is free for contiguous tensors. Where a group is a part of the batch, its
statistics are taken where it lies, and on a CPU one pass over the batch normalises all groups.
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
    rows = _repeated(running, groups)
    kinds = {one.dtype for one in (tokens, weight, bias, *(rows or ())) if one is not None}
    # Compilers and MPS lack the kernel of the statistics, CUDA's sums need a weight, and in 16 bits
    # the gradient would need a copy in 32.
    full = tokens.device.type == "cpu" and kinds in ({torch.float32}, {torch.float64})
    norm = _AllGroups if full and not torch.compiler.is_compiling() else _GroupByGroup
    out: Tensor = norm.apply(tokens, weight, bias, rows, groups, momentum, eps)
    _set_to_means(running, rows)
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
    rows = _repeated(running, groups)
    mean, variance = (None, None) if rows is None else (one.view(-1) for one in rows)
    scale, shift = (
        None if one is None else one.expand(groups, -1).reshape(-1) for one in (weight, bias)
    )
    wide = tokens.reshape(len(tokens) // groups, -1, *tokens.shape[2:])  # (B/G, G C, ...)
    out = F.batch_norm(wide, mean, variance, scale, shift, True, momentum, eps)
    _set_to_means(running, rows)
    # For autograd no view: a ReLU in place on a view would copy its gradient.
    shaped: Tensor = _aten._unsafe_view(out, tokens.shape)
    return shaped


def alternate(samples: Tensor, groups: int) -> Tensor:
    """Samples (B, ...) of consecutive groups in an order in which the groups alternate."""
    return samples.reshape(groups, -1, *samples.shape[1:]).transpose(0, 1).flatten(0, 1)


def consecutive(samples: Tensor, groups: int) -> Tensor:
    """The inverse of `alternate`."""
    return samples.reshape(-1, groups, *samples.shape[1:]).transpose(0, 1).flatten(0, 1)


def _repeated(running: Running, groups: int) -> list[Tensor] | None:
    """Running statistics of each group, (G, C) each."""
    return None if running is None else [one.expand(groups, -1).clone() for one in running]


def _set_to_means(running: Running, rows: list[Tensor] | None) -> None:
    if running is not None and rows is not None:
        for mine, values in zip(running, rows, strict=True):
            mine.copy_(values.mean(0))


class _AllGroups(torch.autograd.Function):
    """The sums of each group, then one pass that scales and shifts all groups.

    torch's backward of a group cannot write into a part of the batch: it needs a copy.
    """

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
        known = ((None,) * groups,) * 2 if rows is None else (one.unbind() for one in rows)
        parts = zip(tokens.chunk(groups), *known, strict=True)
        found = [_aten.batch_norm_update_stats(*part, momentum) for part in parts]
        mean, variance = map(torch.stack, zip(*found, strict=True))  # (G, C) each
        inverse = (variance + eps).rsqrt()
        scale = inverse if weight is None else inverse * weight
        shift = torch.addcmul(mean.new_zeros(()) if bias is None else bias, mean, scale, value=-1)
        out = torch.empty_like(tokens)
        whole = tokens.view(groups, -1, *tokens.shape[1:])  # (G, B/G, C, ...)
        torch.addcmul(_along(shift, whole), whole, _along(scale, whole), out=out.view_as(whole))
        ctx.save_for_backward(tokens, weight, mean, inverse, scale)
        ctx.eps, ctx.wanted = eps, (weight is not None, bias is not None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight, mean, inverse, scale = ctx.saved_tensors
        parts = zip(*(one.chunk(len(mean)) for one in (slope, tokens)), mean, inverse, strict=True)
        sums = [
            _aten.native_batch_norm_backward(
                above, part, weight, None, None, *statistics, True, ctx.eps, [False, True, True]
            )
            for above, part, *statistics in parts
        ]
        for_weight, for_bias = map(torch.stack, list(zip(*sums, strict=True))[1:])  # (G, C) each
        # scale (slope - its mean - normalised tokens x the mean of slope x normalised tokens)
        each = tokens.numel() // mean.numel()
        down = scale * inverse * for_weight / -each
        level = torch.addcmul(scale * for_bias / -each, mean, down, value=-1)
        out = torch.empty_like(tokens)
        whole = tokens.view(len(mean), -1, *tokens.shape[1:])
        inside = out.view_as(whole)
        torch.addcmul(_along(level, whole), whole, _along(down, whole), out=inside)
        inside.addcmul_(slope.view(whole.shape), _along(scale, whole))
        wanted = zip((for_weight, for_bias), ctx.wanted, strict=True)
        affine = (values.sum(0) if wants else None for values, wants in wanted)
        return out, *affine, None, None, None, None


def _along(values: Tensor, tokens: Tensor) -> Tensor:
    """Values (G, C) beside tokens (G, B/G, C, ...)."""
    return values.view(len(values), 1, -1, *[1] * (tokens.dim() - 3))


class _GroupByGroup(torch.autograd.Function):
    """torch's batch norm of each group, written into a part of the batch."""

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
            found, *others = _aten.native_batch_norm_backward(
                above, part, weight, None, None, mean, scale, True, ctx.eps, ctx.wanted
            )
            below.copy_(found)  # at once: all groups' gradients beside it would be a copy more
            sums.append(others)
        for_weight, for_bias = (
            torch.stack(rows).sum(0) if wanted else None
            for rows, wanted in zip(zip(*sums, strict=True), ctx.wanted[1:], strict=True)
        )
        return for_tokens, for_weight, for_bias, None, None, None, None
