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


def info_nce_of_many(
    query: Tensor,
    key: Tensor,
    others: Tensor,
    temperature: float,
    own: int | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """`info_nce` of many queries, without a matrix of all similarities in memory.

    Unit queries (B, K, D) and keys (B, K, D) of B images, others (N, L, D) of N images -> scalar.
    The negatives are all N L others; with `own`, those of the query's own image, number own + b of
    the others, are left out. The loss is the sum over the queries by `weights` (B, K), by default
    their mean. Float32 under autocast.
    """
    with torch.autocast(query.device.type, enabled=False):
        query = precise(query)
        if weights is None:
            weights = query.new_full(query.shape[:2], 1 / max(1, query.shape[:2].numel()))
        rest = (precise(key), precise(others), weights.detach(), temperature, own)
        loss: Tensor = _InfoNCEOfMany.apply(query, *rest)
        return loss


class _InfoNCEOfMany(torch.autograd.Function):
    """In chunks of images. Gradients come from a chunk's softmax, so they are taken at once."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        others: Tensor,
        weights: Tensor,
        temperature: float,
        own: int | None,
    ) -> Tensor:
        loss, wanted = query.new_zeros(()), ctx.needs_input_grad[:3]
        slopes = [
            torch.zeros_like(one) if want else None
            for one, want in zip((query, key, others), wanted, strict=True)
        ]
        # Only real tensors: an estimate of memory by fake ones is faster in few chunks.
        part = _PART if query.device.type == "cpu" and type(query) is Tensor else _LARGE_PART
        images = max(1, part // max(1, query.shape[1] * others.shape[:2].numel()))
        for first in range(0, len(query), images):
            chunk = slice(first, first + images)
            left_out = None if own is None else own + first
            for_query, for_key = (None if one is None else one[chunk] for one in slopes[:2])
            loss += _chunk_loss(
                (query[chunk], key[chunk], others),
                weights[chunk],
                temperature,
                left_out,
                (for_query, for_key, slopes[2]),
            )
        ctx.slopes = slopes
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        slopes = (None if slope is None else slope * above for slope in ctx.slopes)
        return *slopes, None, None, None


def _chunk_loss(
    embeddings: tuple[Tensor, Tensor, Tensor],
    weights: Tensor,
    temperature: float,
    own: int | None,
    slopes: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> Tensor:
    """The loss of a chunk of queries, keys, others; their gradients are added to `slopes`."""
    query, key, others = embeddings
    for_query, for_key, for_others = slopes
    rows, keys, flat = query.flatten(0, 1), key.flatten(0, 1), others.flatten(0, 1)
    scaled, weight = rows / temperature, weights.flatten()
    positive, negative = (scaled * keys).sum(1), scaled @ flat.T
    if own is not None:
        pairs = negative.view(*query.shape[:2], *others.shape[:2])  # (B, K, N, L)
        pairs.diagonal(own, 0, 2).fill_(-torch.inf)
    peak = torch.maximum(negative.amax(1), positive) if len(flat) else positive
    likely, chance = negative.sub_(peak[:, None]).exp_(), (positive - peak).exp_()
    total = likely.sum(1) + chance
    loss = (weight * (total.log() + peak - positive)).sum()  # Eq. 4 as in info_nce, in chunks
    # The gradient with respect to a similarity is its probability; the positive's is less by 1.
    likely.mul_((weight / (temperature * total))[:, None])
    pull = (weight * (chance / total - 1) / temperature)[:, None]
    if for_query is not None:
        for_query += (likely @ flat).addcmul_(keys, pull).view_as(query)
    if for_key is not None:
        for_key += (rows * pull).view_as(key)
    if for_others is not None:
        for_others += (likely.T @ rows).view_as(others)
    return loss
