"""Copies of training images in the validation set."""

import pytest
import torch

from lewel.evaluate.copies import fraction_of_copies


def test_copies_of_training_images_are_noticed_by_their_features() -> None:
    torch.manual_seed(0)
    bank, other = torch.rand(200, 8) + 5, torch.rand(50, 8) + 5
    assert fraction_of_copies(bank, other) == 0.0
    copies = bank[:100] * (1 + 1e-6 * torch.randn(100, 8))
    assert fraction_of_copies(bank, copies) == 1.0
    assert fraction_of_copies(bank, torch.cat([copies, other])) == pytest.approx(2 / 3, abs=0.02)
    assert fraction_of_copies(torch.ones(20, 8), torch.ones(5, 8)) == 0.0  # a collapsed backbone
    assert fraction_of_copies(bank, other[:0]) == fraction_of_copies(bank[:0], other) == 0.0
    far = torch.cat([bank, torch.full((1, 8), 1e6)])  # one outlier among many
    assert fraction_of_copies(far, other) == 0.0
