"""The losses against lightly's on the same tensors."""

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity

from lewel.losses.cosine import normalised_mse


def test_normalised_mse_is_two_plus_two_negative_cosine() -> None:
    one, two = torch.randn(16, 32, dtype=torch.float64), torch.randn(16, 32, dtype=torch.float64)
    theirs = 2 + 2 * NegativeCosineSimilarity()(one, two)
    assert normalised_mse(one, two).item() == pytest.approx(theirs.item(), abs=1e-12)
