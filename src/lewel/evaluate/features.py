"""Features of a backbone for all images of a source, without augmentation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import Source, prefetch
from lewel.data.views.transform import whole_view
from lewel.data.workers import leave_signals_to_the_parent
from lewel.errors import UserError
from lewel.evaluate.room import Room
from lewel.ops.ranks import gather, gather_to_rank_0, rank, ranks

CHUNK = 256  # rows


def refuse_not_finite(rows: Tensor, source: Source, indices: np.ndarray) -> None:
    """Raise UserError for features (N, C) of these images that are NaN or infinite."""
    wrong = [
        first + row
        for first in range(0, len(rows), CHUNK)  # a mask of all would need a quarter of the memory
        for row in (~rows[first : first + CHUNK].isfinite().all(1)).nonzero().flatten().tolist()
    ]
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

    def __getitems__(self, positions: list[int]) -> list[tuple[Tensor, bool]]:
        prefetch(self.source, self.indices[positions].tolist())
        return [self[position] for position in positions]

    def __getitem__(self, position: int) -> tuple[Tensor, bool]:
        try:
            image = self.source.read(int(self.indices[position]))
        except UnreadableImage:
            return torch.zeros(3, self.size, self.size, dtype=torch.uint8), False
        return whole_view(image, self.size).contiguous(), True


class AsTokens(nn.Module):
    """A function of images (B, 3, S, S) -> (B, D) of a model, as an `Extractor` takes it."""

    def __init__(self, model: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)[:, None]


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
    room: Room | None = None  # for features that may not fit the device

    def features(
        self,
        source: Source,
        indices: np.ndarray,
        advance: Callable[[int], None] = lambda images: None,
    ) -> tuple[Tensor, Tensor]:
        """Features float32 (N, C), and on the CPU which could be read, bool (N,).

        They are on the device, unless there is no room.
        """
        return self._collect(source, indices, advance, 1, lambda rows: [rows])

    def gathered_features(
        self,
        source: Source,
        indices: np.ndarray,
        advance: Callable[[int], None] = lambda images: None,
    ) -> tuple[Tensor, Tensor]:
        """The same; each rank computes a subset. Rank 0 gets all features, the others (0, C).

        They are gathered batch by batch: rank 0 holds them once, and no other rank holds them.
        """
        subset = self._subset(indices)
        most = len(subset)
        rows, readable = self._collect(source, subset, advance, ranks(), gather_to_rank_0)
        everywhere = gather(readable.to(self.device)).cpu().view(ranks(), most)
        return rows[: len(indices)], everywhere.T.flatten()[: len(indices)]

    def features_everywhere(
        self, source: Source, indices: np.ndarray, advance: Callable[[int], None]
    ) -> Tensor:
        """Features float32 (N, C); each rank computes a subset, and all ranks get all."""
        subset = self._subset(indices)
        rows, _ = self._collect(
            source, subset, advance, ranks(), lambda rows: list(gather(rows).chunk(ranks()))
        )
        return rows[: len(indices)]

    def _subset(self, indices: np.ndarray) -> np.ndarray:
        """The images of this rank, equally many on all ranks: some take an image twice."""
        most = -(-len(indices) // ranks())
        return np.resize(indices, most * ranks()).reshape(most, ranks())[:, rank()]

    @torch.no_grad()
    def _collect(
        self,
        source: Source,
        indices: np.ndarray,
        advance: Callable[[int], None],
        parts: int,
        share: Callable[[Tensor], list[Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Features of the parts that `share` makes of each batch; their rows alternate."""
        out: Tensor | None = None
        done = 0
        readable = []
        for features, read in self._batches(source, indices):
            shared = share(features)
            if out is None:
                total = len(indices) if shared else 0
                shape = (total, parts, features.shape[1])
                out = self.room.make(shape, features) if self.room else features.new_empty(shape)
            for part, rows in enumerate(shared):
                out[done : done + len(rows), part] = rows
            done += len(features)
            readable.append(read)
            advance(len(features))
        assert out is not None
        return out.flatten(0, 1), torch.cat(readable)

    def _batches(self, source: Source, indices: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """Features float32 (B, C) on the device, and which images could be read, batch by batch."""
        loader = DataLoader(
            WholeViews(source, indices, self.size),
            batch_size=self.batch_size,
            num_workers=min(self.workers, len(indices) // self.batch_size),  # 0 for few images
            worker_init_fn=leave_signals_to_the_parent,
            pin_memory=self.device.type == "cuda",
        )
        centre = torch.tensor(self.mean, device=self.device).view(3, 1, 1)
        scale = torch.tensor(self.std, device=self.device).view(3, 1, 1)
        layout = layout_of(self.backbone)
        for pixels, read in loader:
            moved = pixels.to(self.device, non_blocking=True)
            images = (moved.float() / 255 - centre) / scale
            with self.autocast():
                tokens = self.backbone(images.contiguous(memory_format=layout))
            yield tokens.float().mean(1), read


def to_fast_layout(network: nn.Module, device: torch.device) -> None:
    """Lay a network's convolutions out as a device computes them fastest."""
    if device.type == "cuda":
        network.to(memory_format=torch.channels_last)


def layout_of(network: nn.Module) -> torch.memory_format:
    """The memory layout of a network's convolutions."""
    last = torch.channels_last
    for weight in network.parameters():
        both = weight.is_contiguous()  # 1 x 1 kernels are
        if weight.ndim == 4 and not both and weight.is_contiguous(memory_format=last):
            return last
    return torch.contiguous_format
