"""Collectives get tensors that NCCL takes."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lewel.ops import ranks


@pytest.mark.parametrize("collective", [ranks.sum_over_ranks, ranks.max_over_ranks])
def test_nccl_gets_contiguous_tensors(
    monkeypatch: pytest.MonkeyPatch, collective: Callable[[Tensor], Tensor]
) -> None:
    """NCCL refuses others; gloo, which the tests of two ranks use, takes them."""
    seen = []

    def all_reduce(tensor: Tensor, *_: object) -> None:
        seen.append(tensor.is_contiguous())

    monkeypatch.setattr(ranks, "ranks", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    collective(torch.rand(3, 4).T)
    collective(torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last))
    assert seen == [True, True]
