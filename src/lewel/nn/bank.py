"""A memory bank: one embedding of each image of the training set."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.losses.info_nce import similarities
from lewel.nn.rows import RowBuffers, write_rows
from lewel.ops.precision import unit
from lewel.ops.ranks import from_rank_0


class MemoryBank(RowBuffers):
    """Unit vectors (images, D), initialised randomly; an update keeps `momentum` of an entry."""

    large = ("entries",)
    entries: Tensor

    def __init__(self, images: int, dim: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("entries", F.normalize(torch.randn(images, dim), dim=1))

    def similarities(self, query: Tensor, indices: Tensor, many: int) -> tuple[Tensor, Tensor]:
        """Similarities of unit queries (B, D) to their own entries (B,) and to others (B, K).

        The others are `many` draws from the bank, the same for all queries and ranks, or the whole
        bank where it is not larger. The own entry among them is masked by -inf.
        """
        drawn = torch.arange(len(self.entries), device=query.device)
        if many < len(drawn):
            drawn = from_rank_0(torch.randint(len(drawn), (many,), device=query.device))
        entries = self.entries
        positive, negative = similarities(query, entries[indices], entries[drawn])
        return positive, negative.masked_fill(indices[:, None] == drawn, -torch.inf)

    @torch.no_grad()
    def update(self, indices: Tensor, embeddings: Tensor) -> None:
        """v <- m v + (1 - m) z, of length 1, for the entries (B,) by the embeddings (B, D)."""
        old = self.entries[indices]
        new = unit(old.lerp(embeddings.to(old.dtype), 1 - self.momentum))
        write_rows(self.entries, indices, new)
