"""The losses against lightly's on the same tensors."""

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss

from lewel.losses.cosine import normalised_mse
from lewel.losses.info_nce import info_nce
from lewel.ops.precision import unit


def test_normalised_mse_is_two_plus_two_negative_cosine() -> None:
    one, two = torch.randn(16, 32, dtype=torch.float64), torch.randn(16, 32, dtype=torch.float64)
    theirs = 2 + 2 * NegativeCosineSimilarity()(one, two)
    assert normalised_mse(one, two).item() == pytest.approx(theirs.item(), abs=1e-12)


def test_info_nce_is_lightlys_with_a_memory_bank() -> None:
    queries, keys = torch.randn(8, 16), torch.randn(8, 16)
    theirs = NTXentLoss(temperature=0.2, memory_bank_size=(32, 16))
    theirs(torch.randn(32, 16), torch.randn(32, 16))  # fills the bank
    bank = theirs.memory_bank.bank.clone()
    bank = bank if bank.shape == (32, 16) else bank.T
    queries.requires_grad_()  # lightly enqueues only while training
    expected = theirs(queries, keys)
    negatives = torch.nn.functional.normalize(bank, dim=1)
    ours = info_nce((unit(queries) * unit(keys)).sum(1), unit(queries) @ negatives.T, 0.2)
    assert ours.item() == pytest.approx(expected.item(), abs=1e-5)
