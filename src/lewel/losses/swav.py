"""The loss of SwAV: the codes of one crop, predicted from the others."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lewel.ops.precision import precise


def swapped_prediction(
    scores: Sequence[Tensor], codes: Sequence[Tensor], temperature: float
) -> Tensor:
    """The cross-entropy of each code (N, K) and every other crop's scores (N, K), the mean of all.

    Scores are the cosines of embeddings and prototypes, of all crops; codes those of the first
    ones. Float32 under autocast.
    """
    losses = []
    with torch.autocast(scores[0].device.type, enabled=False):
        logs = [(precise(each) / temperature).log_softmax(1) for each in scores]
        for number, code in enumerate(codes):
            for other, log in enumerate(logs):
                if other != number:
                    losses.append(-(code * log).sum(1).mean())  # l(z, q)
        return torch.stack(losses).mean()
