"""Validation images that are copies of training images: their accuracy would mean nothing."""

from typing import Any

import torch
from torch import Tensor

from lewel.ops.precision import exact_products

COMPARED, MOST = 500, 50_000  # queries that are looked for in the bank, and rows of the bank
PART = 1024  # rows that are compared at a time: a copy of all would be as large as the features
ALLOWED = 0.2  # fraction of the validation images that may look like copies


@torch.no_grad()
def fraction_of_copies(bank: Tensor, queries: Tensor) -> float:
    """The fraction of some queries (Q, C) that are rows of the bank (M, C), up to rounding.

    0 where the bank is large, or where all features are alike.
    """
    if len(bank) > MOST or not len(bank) or not len(queries):
        return 0.0
    some = queries[:: -(-len(queries) // COMPARED)].to(bank.device)  # one may lie elsewhere
    # The median: one feature far from all others moves the mean.
    centre = bank[:: -(-len(bank) // COMPARED)].median(0).values
    size = (some - centre).norm(dim=1).median()
    if size <= 1e-3 * centre.norm():
        return 0.0
    nearest, some = some.new_full((len(some),), torch.inf), some - centre
    with exact_products():
        for part in torch.split(bank, PART):
            nearest = torch.minimum(nearest, torch.cdist(some, part - centre).amin(1))
    return float((nearest < 2e-3 * size).double().mean())


def copies_warning(result: dict[str, Any]) -> list[str]:
    """A warning where a result (cached ones, too) has many copies; otherwise nothing."""
    if result.get("copies", 0.0) <= ALLOWED:
        return []
    return [
        f"Warning: {result['copies']:.0%} of the validation images that were compared have the "
        "features of a training image. Are they copies? Then the accuracy means nothing."
    ]
