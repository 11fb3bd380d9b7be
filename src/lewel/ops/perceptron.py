"""Linear, norm, ReLU, linear on many tokens, without storing all hidden activations.

A batch norm's statistics follow from the moments of the inputs of the linear layer before it. So
all layers are known beforehand, and the tokens are processed in chunks that fit the CPU's cache.
H is hidden units, M tokens, I inputs, O outputs.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Loss = Callable[[Tensor, Tensor], Tensor]

_PART = 1 << 22  # hidden values of a chunk: 16 MB in float32


def moments_are_cheaper(tokens: int, inputs: int, hidden: int) -> bool:
    """Whether computing the variance of M x H activations from the inputs' covariance is faster.

    The covariance and its gradient take 4 I^2 (M + H) multiplications; a batch norm passes over
    M x H values in memory, each worth about 300 of them.

    >>> moments_are_cheaper(tokens=4096, inputs=256, hidden=4096)
    True
    """
    return inputs**2 * (tokens + hidden) < 75 * tokens * hidden


def linear_variance(tokens: Tensor, weight: Tensor) -> Tensor:
    """The variance over the tokens (M, I) of each output of a layer (H, I): (H,)."""
    out: Tensor = _LinearVariance.apply(tokens, weight)
    return out


def gathered_moments(maps: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over all rows of maps @ values, (B, K, R) @ (B, R, H): (H,), (H,)."""
    mean, square = _GatheredMoments.apply(maps, values)
    return mean, square - mean.square()


def gathered_perceptron(maps: Tensor, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(maps @ values) through a linear layer: (B, K, R), (B, R, H), (O, H), (O,) -> (B, K, O).

    Backward recomputes the hidden activations, which is cheap for small R.
    """
    out: Tensor = _GatheredPerceptron.apply(maps, values, weight, bias)
    return out


def perceptron_loss(
    tokens: Tensor,
    first: tuple[Tensor, Tensor],
    last: tuple[Tensor, Tensor],
    target: Tensor,
    loss: Loss,
) -> Tensor:
    """The loss, a mean over tokens, of two linear layers with a ReLU between them.

    Tokens (M, I), layers (H, I), (H,) and (O, H), (O,), targets (M, O) -> scalar. The gradient is
    computed with the loss, chunk by chunk, and kept for backward.
    """
    out: Tensor = _PerceptronLoss.apply(tokens, *first, *last, target, loss)
    return out


def _parts(rows: int, hidden: int) -> Iterator[slice]:
    size = _rows_at_once(rows, hidden)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def _rows_at_once(rows: int, hidden: int) -> int:
    return min(rows, max(1, _PART // hidden))


def _scratch(like: Tensor, rows: int, *row: int) -> Tensor:
    """A buffer for the hidden values of one chunk of rows, reused by all chunks.

    New memory for each chunk would cost a page fault per 4 kB.
    """
    return like.new_empty(_rows_at_once(rows, math.prod(row)), *row)


def _through_relu(slope: Tensor, active: Tensor) -> None:
    """The gradient (M, H) before a ReLU from the one after it, in place."""
    aten: Any = torch.ops.aten
    aten.threshold_backward.grad_input(slope, active, 0, grad_input=slope)


class _LinearVariance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor) -> Tensor:
        centred = tokens - tokens.mean(0)
        covariance = (centred.T @ centred).div_(len(tokens))
        product = weight @ covariance
        ctx.save_for_backward(centred, weight, product)
        return (product * weight).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        centred, weight, product = ctx.saved_tensors
        column = 2 * slope[:, None]
        for_tokens = centred @ (weight.T @ (column * weight)).div_(len(centred))
        return for_tokens, product * column


class _GatheredMoments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        rows = maps.shape[0] * maps.shape[1]
        weight = maps.sum(1)  # (B, R)
        products = maps.mT @ maps  # (B, R, R)
        mean = weight.flatten() @ values.flatten(0, 1) / rows
        square = torch.zeros_like(mean)
        room = _scratch(values, *values.shape)
        for part in _parts(len(maps), values.shape[1] * values.shape[2]):
            here = values[part]
            square += (
                torch.matmul(products[part], here, out=room[: len(here)]).mul_(here).sum((0, 1))
            )
        ctx.save_for_backward(maps, values)
        return mean, square.div_(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        maps, values = ctx.saved_tensors
        rows = maps.shape[0] * maps.shape[1]
        weight, products = maps.sum(1), maps.mT @ maps
        mean, square = mean / rows, 2 * square / rows
        for_maps, for_values = torch.empty_like(maps), torch.empty_like(values)
        room = _scratch(values, *values.shape)
        for part in _parts(len(maps), values.shape[1] * values.shape[2]):
            here = values[part]
            torch.matmul(products[part], here, out=for_values[part])
            for_values[part].mul_(square).addcmul_(weight[part][..., None], mean)
            turned = torch.mul(here, square, out=room[: len(here)]) @ here.mT  # (b, R, R)
            for_maps[part] = maps[part] @ turned + (here @ mean)[:, None]
        return for_maps, for_values


class _GatheredPerceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(maps, values, weight)
        out = maps.new_empty(*maps.shape[:2], len(weight))
        room = _scratch(values, *maps.shape[:2], values.shape[2])
        for part in _parts(len(maps), maps.shape[1] * values.shape[2]):
            here = room[: len(maps[part])]
            active = torch.matmul(maps[part], values[part], out=here).relu_().flatten(0, 1)
            torch.addmm(bias, active, weight.T, out=out[part].flatten(0, 1))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        maps, values, weight = ctx.saved_tensors
        slope = slope.contiguous()
        for_maps, for_values = torch.empty_like(maps), torch.empty_like(values)
        for_weight = torch.zeros_like(weight)
        room, more = (_scratch(values, *maps.shape[:2], values.shape[2]) for _ in range(2))
        for part in _parts(len(maps), maps.shape[1] * values.shape[2]):
            here, hidden = room[: len(maps[part])], more[: len(maps[part])]
            active = torch.matmul(maps[part], values[part], out=here).relu_()
            rows = slope[part].flatten(0, 1)
            for_weight.addmm_(rows.T, active.flatten(0, 1))
            torch.mm(rows, weight, out=hidden.flatten(0, 1))
            _through_relu(hidden, active)
            torch.matmul(hidden, values[part].mT, out=for_maps[part])
            torch.matmul(maps[part].mT, hidden, out=for_values[part])
        return for_maps, for_values, for_weight, slope.sum((0, 1))


class _PerceptronLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor,
        bias: Tensor,
        last_weight: Tensor,
        last_bias: Tensor,
        target: Tensor,
        loss: Loss,
    ) -> Tensor:
        needs_grad = any(ctx.needs_input_grad)
        for_tokens = torch.empty_like(tokens)
        sums = [torch.zeros_like(x) for x in (weight, bias, last_weight, last_bias)]
        total = tokens.new_zeros(())
        room, more = (_scratch(tokens, len(tokens), len(weight)) for _ in range(2))
        for part in _parts(len(tokens), len(weight)):
            rows = tokens[part]
            active = torch.addmm(bias, rows, weight.T, out=room[: len(rows)]).relu_()
            out = torch.addmm(last_bias, active, last_weight.T)
            with torch.enable_grad():
                out.requires_grad_(needs_grad)
                value = loss(out, target[part]) * (len(rows) / len(tokens))
            total += value.detach()
            if not needs_grad:
                continue
            (slope,) = torch.autograd.grad(value, out)
            sums[2].addmm_(slope.T, active)
            sums[3] += slope.sum(0)
            hidden = torch.mm(slope, last_weight, out=more[: len(rows)])
            _through_relu(hidden, active)
            sums[0].addmm_(hidden.T, rows)
            sums[1] += hidden.sum(0)
            torch.mm(hidden, weight, out=for_tokens[part])
        if needs_grad:
            ctx.save_for_backward(for_tokens, *sums)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return *(slope * gradient for gradient in ctx.saved_tensors), None, None
