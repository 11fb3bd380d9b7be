"""NT-Xent, the contrastive loss of SimCLR: InfoNCE among all views of the global batch."""

import torch
from torch import Tensor

from lewel.losses.info_nce import info_nce
from lewel.ops.precision import precise
from lewel.ops.ranks import gather_with_gradient, own_rows


def nt_xent(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """The mean InfoNCE loss of both views of each image, each the other's positive.

    Unit embeddings of two views of this rank's images, K of each image: (B, K, D), (B, K, D) ->
    scalar. Embedding k has embedding k of the other view as its positive. Its negatives are all
    embeddings of both views of all other images of all ranks, 2 (R B - 1) K. Gradients reach all
    of them. Float32 under autocast.
    """
    with torch.autocast(one.device.type, enabled=False):
        one, two = precise(one), precise(two)
        mine = torch.stack([one, two])  # (2, B, K, D)
        others = torch.stack([gather_with_gradient(one), gather_with_gradient(two)])
        positive = (one * two).sum(-1).expand(2, -1, -1)  # (2, B, K)
        similarity = torch.einsum("vikd,wjld->vikwjl", mine, others)
    same_image = own_rows(others.shape[1], one.device)[None, :, None, None, :, None]
    negative = similarity.masked_fill(same_image, -torch.inf)
    rows = negative.flatten(3).flatten(0, 2)
    return info_nce(positive.flatten(), rows, temperature)  # NT-Xent of SimCLR
