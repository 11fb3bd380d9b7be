"""InfoNCE of many queries in chunks against the plain one of all similarities."""

import pytest
import torch
from torch import Tensor

from lewel.losses import info_nce as module
from lewel.losses.info_nce import info_nce, info_nce_rows
from lewel.ops.precision import unit


def embeddings(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return unit(torch.randn(*shape, generator=noise, dtype=torch.float64)).to(dtype)


def plain(query: Tensor, key: Tensor, others: Tensor, own: int | None) -> Tensor:
    """One `info_nce` a query, with its negatives picked one by one: (B, K)."""
    rows = []
    for b in range(len(query)):
        kept = [n for n in range(len(others)) if own is None or n != own + b]
        negatives = others[kept].flatten(0, 1)
        for k in range(query.shape[1]):
            positive = (query[b, k] * key[b, k]).sum()[None]
            rows.append(info_nce(positive, (negatives @ query[b, k])[None], 0.2))
    return torch.stack(rows).view(query.shape[:2])


@pytest.mark.parametrize("own", [None, 0, 2])
@pytest.mark.parametrize("part", [1, 40, 1 << 19])  # an image at a time, two, all
def test_rows_and_gradients_are_those_of_the_plain_loss(
    own: int | None, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART", part)
    query, key = embeddings(3, 2, 5), embeddings(3, 2, 5, seed=1)
    others = embeddings(5, 2, 5, seed=2)
    above = torch.rand(3, 2, dtype=torch.float64)
    ours, slow = (query.clone().requires_grad_() for _ in range(2))
    rows, expected = info_nce_rows(ours, key, others, 0.2, own), plain(slow, key, others, own)
    torch.testing.assert_close(rows, expected)
    (rows * above).sum().backward()
    (expected * above).sum().backward()
    torch.testing.assert_close(ours.grad, slow.grad)
    assert torch.autograd.gradcheck(
        lambda free: info_nce_rows(free, key, others, 0.2, own), ours.detach().requires_grad_()
    )


def test_extreme_similarities_do_not_overflow() -> None:
    """A positive of -1 among negatives of 1, at a temperature whose exponentials leave float32."""
    query = torch.tensor([[[1.0, 0.0]]]).requires_grad_()
    rows = info_nce_rows(query, -query.detach(), query.detach(), 0.005)
    rows.sum().backward()
    torch.testing.assert_close(rows, torch.full((1, 1), 2 / 0.005))
    assert query.grad is not None and query.grad.isfinite().all()


def test_without_negatives_the_loss_is_zero() -> None:
    """One image in the batch: all of the others are its own."""
    query = embeddings(1, 4, 8, dtype=torch.float32).requires_grad_()
    rows = info_nce_rows(query, embeddings(1, 4, 8, dtype=torch.float32, seed=1), query, 0.2, 0)
    rows.sum().backward()
    torch.testing.assert_close(rows, torch.zeros(1, 4))
    torch.testing.assert_close(query.grad, torch.zeros(1, 4, 8))


def test_it_is_float32_under_autocast_and_gives_keys_no_gradient() -> None:
    query, key, others = (
        embeddings(4, 2, 8, dtype=torch.float32, seed=s).requires_grad_() for s in range(3)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = info_nce_rows(query, key, others, 0.2)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, info_nce_rows(query, key, others, 0.2))
    rows.sum().backward()
    assert query.grad is not None and key.grad is None and others.grad is None
