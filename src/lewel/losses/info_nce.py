"""InfoNCE, the contrastive loss of MoCo v2 and LEWEL_M."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lewel.ops.precision import precise

_PART = 1 << 19  # similarities of a chunk: 2 MB in float32 stay in a CPU's cache
_LARGE_PART = 1 << 24  # for a GPU


def similarities(query: Tensor, key: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines of unit queries (M, D) to their keys (M, D) and to others (K, D): (M,), (M, K)."""
    with torch.autocast(query.device.type, enabled=False):
        return (query * key).sum(1), query @ others.T


def info_nce(positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """-log of the positive's softmax probability among all candidates, the mean over the rows.

    Cosine similarities of the positives (M,) and of K negatives each (M, K) -> scalar. A negative
    of -inf is ignored. Eq. 4's denominator is read as the usual sum of exponentials. Float32
    under autocast.
    """
    with torch.autocast(positive.device.type, enabled=False):
        candidates = torch.cat([precise(positive)[:, None], precise(negative)], 1) / temperature
        return (candidates.logsumexp(1) - candidates[:, 0]).mean()  # Eq. 4


def info_nce_rows(
    query: Tensor, key: Tensor, others: Tensor, temperature: float, own: int | None = None
) -> Tensor:
    """`info_nce` of each of many queries, without a matrix of all similarities in memory.

    Unit queries (B, K, D) and keys (B, K, D) of B images, others (N, L, D) of N images -> (B, K).
    The negatives are all N L others; with `own`, those of the query's own image, number own + b of
    the others, are left out. No gradient reaches keys and others. Float32 under autocast.
    """
    with torch.autocast(query.device.type, enabled=False):
        tensors = (precise(one) for one in (query, key.detach(), others.detach()))
        rows: Tensor = _InfoNCERows.apply(*tensors, temperature, own)
        return rows


class _InfoNCERows(torch.autograd.Function):
    """In chunks of images. The gradient of a row comes from its softmax, so it is kept at once."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, others: Tensor, temperature: float, own: int | None
    ) -> Tensor:
        rows, slopes = query.new_empty(query.shape[:2]), torch.empty_like(query)
        # Only real tensors: an estimate of memory by fake ones is faster in few chunks.
        part = _PART if query.device.type == "cpu" and type(query) is Tensor else _LARGE_PART
        images = max(1, part // max(1, query.shape[1] * others.shape[:2].numel()))
        for first in range(0, len(query), images):
            chunk = slice(first, first + images)
            left_out = None if own is None else own + first
            found = _softmax_rows(query[chunk], key[chunk], others, temperature, left_out)
            rows[chunk] = found[0]
            if ctx.needs_input_grad[0]:
                slopes[chunk] = found[1]
        ctx.save_for_backward(slopes)
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return slopes * above[..., None], None, None, None, None


def _softmax_rows(
    query: Tensor, key: Tensor, others: Tensor, temperature: float, own: int | None
) -> tuple[Tensor, Tensor]:
    """Losses (B, K) of a chunk, and their gradients with respect to the queries (B, K, D)."""
    scaled, positives, flat = (
        query.flatten(0, 1) / temperature,
        key.flatten(0, 1),
        others.flatten(0, 1),
    )
    positive, negative = (scaled * positives).sum(1), scaled @ flat.T
    if own is not None:
        pairs = negative.view(*query.shape[:2], *others.shape[:2])  # (B, K, N, L)
        pairs.diagonal(own, 0, 2).fill_(-torch.inf)
    peak = torch.maximum(negative.amax(1), positive)
    weights, weight = negative.sub_(peak[:, None]).exp_(), (positive - peak).exp_()
    total = weights.sum(1) + weight
    rows = total.log() + peak - positive
    slopes = (weights @ flat).addcmul_(positives, (weight - total)[:, None])
    slopes = slopes.div_((temperature * total)[:, None])
    return rows.view(query.shape[:2]), slopes.view_as(query)
