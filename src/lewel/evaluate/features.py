"""Features of a backbone for all images of a source, without augmentation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import Source
from lewel.data.views.transform import whole_view
from lewel.data.workers import leave_signals_to_the_parent
from lewel.errors import UserError
from lewel.ops.ranks import gather, rank, ranks


def refuse_not_finite(rows: Tensor, source: Source, indices: np.ndarray) -> None:
    """Raise UserError for features (N, C) of these images that are NaN or infinite."""
    wrong = (~rows.isfinite().all(1)).nonzero().flatten().tolist()
    if wrong:
        raise UserError(
            f"The features of {len(wrong):,} of {len(rows):,} images are not finite, for example "
            f"of {source.describe(int(indices[wrong[0]]))}: the weights are damaged, or too large "
            "for this precision."
        )


class WholeViews(Dataset[tuple[Tensor, bool]]):
    """Images of a source by index, each as its whole view, and whether it could be read."""

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
    """Extracts features: the mean over the tokens (B, N, C) of `backbone`.

    Call .eval() on the backbone before.
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
    def features(
        self,
        source: Source,
        indices: np.ndarray,
        advance: Callable[[int], None] = lambda images: None,
    ) -> tuple[Tensor, Tensor]:
        """Features float32 (N, C) and which images could be read, bool (N,), on the CPU."""
        loader = DataLoader(
            WholeViews(source, indices, self.size),
            batch_size=self.batch_size,
            num_workers=min(self.workers, len(indices) // self.batch_size),  # 0 for few images
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

    def gathered_features(
        self,
        source: Source,
        indices: np.ndarray,
        advance: Callable[[int], None] = lambda images: None,
    ) -> tuple[Tensor, Tensor]:
        """The same; each rank computes a subset, all ranks get all features."""
        most = -(-len(indices) // ranks())  # equal on all ranks: some take an image twice
        subset = np.resize(indices, most * ranks()).reshape(most, ranks())[:, rank()]
        rows, readable = self.features(source, subset, advance)
        order = torch.arange(most * ranks()).view(ranks(), most).T.flatten()[: len(indices)]
        rows = gather(rows.to(self.device)).cpu()[order]
        return rows, gather(readable.to(self.device)).cpu()[order]
