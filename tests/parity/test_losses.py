"""The losses against lightly's on the same tensors."""

import pytest
import torch
from lightly.loss import BarlowTwinsLoss, NegativeCosineSimilarity, NTXentLoss, SwaVLoss

from lewel.losses.barlow_twins import cross_correlation, redundancy
from lewel.losses.cosine import negative_cosine, normalised_mse
from lewel.losses.info_nce import info_nce
from lewel.losses.nt_xent import nt_xent
from lewel.losses.swav import swapped_prediction
from lewel.ops.precision import unit
from lewel.ops.sinkhorn import sinkhorn


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


def pair(rows: int, dim: int) -> list[torch.Tensor]:
    """Embeddings of two views that are alike, with gradients."""
    one = torch.randn(rows, dim, dtype=torch.float64)
    two = one + 0.5 * torch.randn_like(one)
    return [one.requires_grad_(), two.requires_grad_()]


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    """The same value and the same gradients."""
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-9)
    for mine, other in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True
    ):
        assert mine.abs().max() > 1e-6
        assert torch.allclose(mine, other, atol=1e-9)


def test_nt_xent_is_lightlys() -> None:
    one, two = pair(8, 16)
    ours = nt_xent(unit(one)[:, None], unit(two)[:, None], 0.1)
    assert_same(ours, NTXentLoss(temperature=0.1)(one, two), [one, two])


def test_simsiams_loss_is_lightlys() -> None:
    one, two = pair(8, 16)
    assert_same(negative_cosine(one, two), NegativeCosineSimilarity()(one, two.detach()), [one])


def test_barlow_twins_loss_is_lightlys() -> None:
    one, two = pair(12, 6)
    ours = redundancy(cross_correlation(one, two), 0.0051)
    assert_same(ours, BarlowTwinsLoss(lambda_param=0.0051)(one, two), [one, two])


def test_swavs_loss_is_lightlys() -> None:
    scores = [torch.randn(8, 5, dtype=torch.float64).tanh().requires_grad_() for _ in range(4)]
    codes = [sinkhorn(large, 0.05, 3) for large in scores[:2]]
    theirs = SwaVLoss(temperature=0.1, sinkhorn_iterations=3, sinkhorn_epsilon=0.05)
    assert_same(swapped_prediction(scores, codes, 0.1), theirs(scores[:2], scores[2:]), scores)
