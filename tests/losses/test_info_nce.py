"""InfoNCE of many queries in chunks against the plain one of all similarities."""

import pytest
import torch
from torch import Tensor

from lewel.losses import info_nce as module
from lewel.losses.info_nce import info_nce, info_nce_of_many
from lewel.ops.precision import unit


def embeddings(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return unit(torch.randn(*shape, generator=noise, dtype=torch.float64)).to(dtype)


def plain(
    query: Tensor, key: Tensor, others: Tensor, own: int | None, weights: Tensor | None
) -> Tensor:
    """One `info_nce` a query, with its negatives picked one by one."""
    rows = []
    for b in range(len(query)):
        kept = [n for n in range(len(others)) if own is None or n != own + b]
        negatives = others[kept].flatten(0, 1)
        for k in range(query.shape[1]):
            positive = (query[b, k] * key[b, k]).sum()[None]
            rows.append(info_nce(positive, (negatives @ query[b, k])[None], 0.2))
    losses = torch.stack(rows)
    return losses.mean() if weights is None else (losses * weights.flatten()).sum()


@pytest.mark.parametrize("own", [None, 0, 2])
@pytest.mark.parametrize("part", [1, 40, 1 << 19])  # an image at a time, two, all
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradients_are_those_of_the_plain_one(
    own: int | None, part: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART", part)
    tensors = [embeddings(3, 2, 5), embeddings(3, 2, 5, seed=1), embeddings(5, 2, 5, seed=2)]
    weights = torch.tensor([[1.0, 0], [0.5, 2], [0, 3]], dtype=torch.float64) if weighted else None
    ours, slow = ([one.clone().requires_grad_() for one in tensors] for _ in range(2))
    loss, expected = info_nce_of_many(*ours, 0.2, own, weights), plain(*slow, own, weights)
    torch.testing.assert_close(loss, expected)
    (3 * loss).backward()
    (3 * expected).backward()
    for one, other in zip(ours, slow, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert torch.autograd.gradcheck(
        lambda *free: info_nce_of_many(*free, 0.2, own, weights),
        [one.requires_grad_() for one in tensors],
    )


def test_extreme_similarities_do_not_overflow() -> None:
    """A positive of -1 among negatives of 1, at a temperature whose exponentials leave float32."""
    query = torch.tensor([[[1.0, 0.0]]]).requires_grad_()
    loss = info_nce_of_many(query, -query.detach(), query.detach(), 0.005)
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(2 / 0.005))
    assert query.grad is not None and query.grad.isfinite().all()


def test_without_negatives_the_loss_is_zero() -> None:
    """One image in the batch: all of the others are its own."""
    query = embeddings(1, 4, 8, dtype=torch.float32).requires_grad_()
    key = embeddings(1, 4, 8, dtype=torch.float32, seed=1)
    loss = info_nce_of_many(query, key, query, 0.2, 0)
    loss.backward()
    torch.testing.assert_close(loss, torch.zeros(()))
    torch.testing.assert_close(query.grad, torch.zeros(1, 4, 8))


def test_an_empty_list_of_negatives_is_one_too() -> None:
    query = torch.nn.functional.normalize(torch.randn(2, 3, 4), dim=-1).requires_grad_()
    loss = info_nce_of_many(query, query.detach(), torch.empty(0, 3, 4), 0.2)
    loss.backward()
    assert loss.item() == 0 and query.grad is not None and query.grad.abs().max() == 0


def test_it_is_float32_under_autocast_and_takes_only_wanted_gradients() -> None:
    query, key, others = (embeddings(4, 2, 8, dtype=torch.float32, seed=s) for s in range(3))
    query.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = info_nce_of_many(query, key, others, 0.2)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, info_nce_of_many(query, key, others, 0.2))
    assert [slope is None for slope in loss.grad_fn.slopes] == [False, True, True]
