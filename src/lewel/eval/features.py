"""Features of a backbone for a whole source of images: one pass, no augmentation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lewel.data.images import UnreadableImage
from lewel.data.loader import leave_signals_to_the_parent
from lewel.data.resize import resize
from lewel.data.sources import Source
from lewel.ops.ranks import gather, rank, ranks


def whole_view(image: Tensor, size: int) -> Tensor:
    """An image as it is judged: uint8 (3, H, W) -> (3, S, S).

    The shorter side becomes 8/7 of the size and the centre is cut out (256 and 224 in the paper);
    an image that already is (S, S) stays as it is.
    """
    height, width = image.shape[1:]
    if (height, width) == (size, size):
        return image
    side, shorter = min(height, width), round(size * 8 / 7)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[:, top : top + side, left : left + side]
    resized = resize(square, shorter, shorter)
    edge = (shorter - size) // 2
    return resized[:, edge : edge + size, edge : edge + size]


class WholeViews(Dataset[tuple[Tensor, bool]]):
    """The chosen samples of a source, each as its whole view, and whether it could be read."""

    def __init__(self, source: Source, indices: np.ndarray, size: int) -> None:
        self.source, self.indices, self.size = source, indices, size

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[Tensor, bool]:
        try:
            image = self.source.read(int(self.indices[position]))
        except UnreadableImage:
            return torch.zeros(3, self.size, self.size, dtype=torch.uint8), False
        return whole_view(image, self.size).contiguous(), True


@dataclass(frozen=True)
class Extractor:
    """Turns images into features: the mean token of each, as `backbone` gives tokens (B, N, C).

    The backbone is used as it is: call .eval() on it before.
    """

    backbone: nn.Module
    size: int
    mean: Sequence[float]
    std: Sequence[float]
    device: torch.device
    batch_size: int = 256
    workers: int = 0
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext

    @torch.no_grad()
    def mine(
        self,
        source: Source,
        indices: np.ndarray,
        advance: Callable[[int], None] = lambda images: None,
    ) -> tuple[Tensor, Tensor]:
        """Features float32 (N, C) and which images could be read, bool (N,), on the CPU."""
        loader = DataLoader(
            WholeViews(source, indices, self.size),
            batch_size=self.batch_size,
            num_workers=min(self.workers, len(indices) // self.batch_size),  # few need none
            worker_init_fn=leave_signals_to_the_parent,
        )
        centre = torch.tensor(self.mean, device=self.device).view(3, 1, 1)
        scale = torch.tensor(self.std, device=self.device).view(3, 1, 1)
        parts, readable = [], []
        for pixels, read in loader:
            images = (pixels.to(self.device).float() / 255 - centre) / scale
            with self.autocast():
                tokens = self.backbone(images)
            parts.append(tokens.float().mean(1).cpu())
            readable.append(read)
            advance(len(pixels))
        return torch.cat(parts), torch.cat(readable)

    def all(
        self,
        source: Source,
        indices: np.ndarray,
        advance: Callable[[int], None] = lambda images: None,
    ) -> tuple[Tensor, Tensor]:
        """The same, of which each rank does its share, and all ranks have all in the end."""
        most = -(-len(indices) // ranks())  # all ranks have as many: some take an image twice
        share = np.resize(indices, most * ranks()).reshape(most, ranks())[:, rank()]
        rows, readable = self.mine(source, share, advance)
        order = torch.arange(most * ranks()).view(ranks(), most).T.flatten()[: len(indices)]
        rows = gather(rows.to(self.device)).cpu()[order]
        return rows, gather(readable.to(self.device)).cpu()[order]
