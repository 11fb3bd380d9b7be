"""The queue of MoCo: embeddings of earlier batches, which serve as negatives."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Queue(nn.Module):
    """A ring of normalised keys (size, D), random directions at first; all of it is state."""

    keys: Tensor
    position: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def similarities(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Of unit queries (B, D) with their own keys (B,), and with all in the queue (B, size)."""
        with torch.autocast(query.device.type, enabled=False):
            return (query * key).sum(1), query @ self.keys.T

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Replace the oldest keys by new ones (B, D); of more than fit, the last ones stay."""
        size = len(self.keys)
        keys = keys[-size:]
        places = (self.position + torch.arange(len(keys), device=keys.device)) % size
        self.keys[places] = keys.to(self.keys.dtype)
        self.position.copy_((self.position + len(keys)) % size)
