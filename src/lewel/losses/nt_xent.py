"""NT-Xent, the contrastive loss of SimCLR: InfoNCE among all views of the global batch."""

import torch
from torch import Tensor

from lewel.losses.info_nce import info_nce_of_many
from lewel.ops.precision import precise
from lewel.ops.ranks import gather_with_gradient, rank


def nt_xent(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """The mean InfoNCE loss of both views of each image, each the other's positive.

    Unit embeddings of two views of this rank's images, K of each image: (B, K, D), (B, K, D) ->
    scalar. Embedding k has embedding k of the other view as its positive. Its negatives are all
    embeddings of both views of all other images of all ranks, 2 (R B - 1) K. Gradients reach all
    of them. Float32 under autocast.
    """
    one, two = precise(one), precise(two)
    both, swapped = torch.cat([one, two], 1), torch.cat([two, one], 1)  # (B, 2 K, D)
    others = gather_with_gradient(both)
    own = rank() * len(both)
    return info_nce_of_many(both, swapped, others, temperature, own)  # NT-Xent of SimCLR
