"""Batches of two views, whose order and random draws depend on the seed only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import Source, prefetch
from lewel.data.views.augment import augment_colours
from lewel.data.views.blocks import block_shuffle
from lewel.data.views.crop import ViewRecipe, crop_view, draw_view
from lewel.data.workers import leave_signals_to_the_parent
from lewel.ops.randomness import generator, permutation

Key = tuple[int, int]  # epoch, index of the sample
TRIES = 100  # replacements tried for one unreadable image before the data counts as corrupt


class Batch(NamedTuple):
    """B samples from the workers; each list has one entry per view."""

    pixels: list[Tensor]  # uint8 (B, 3, S, S)
    draws: list[Tensor]  # float32 (B, P), photometric draws for `augment_colours`
    boxes: list[Tensor]  # int64 (B, 4), top, left, height, width of the crop
    flips: list[Tensor]  # bool (B,)
    sizes: Tensor  # int64 (B, 2), height and width of the images
    indices: Tensor  # int64 (B,), of the requested samples
    corrupt: list[
        tuple[int, str, str]
    ]  # index, name and reason of each image that could not be read


@dataclass(frozen=True)
class Order:
    """Which samples the micro-batches hold: rank r takes slice r of each global batch."""

    samples: int
    batch_size: int  # the total, over ranks and micro-batches
    seed: int
    accumulate: int = 1
    rank: int = 0
    ranks: int = 1
    # The block that each sample is stored in, (samples,), for packed data.
    blocks: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def steps_per_epoch(self) -> int:
        """The last partial batch is dropped."""
        return self.samples // self.batch_size

    def epoch(self, epoch: int) -> np.ndarray:
        """All sample indices in the order of this epoch."""
        draw = generator(self.seed, epoch)
        if self.blocks is None:
            return permutation(draw, self.samples)
        return block_shuffle(self.blocks, self.batch_size, draw)

    def keys(self, first_step: int, last_step: int) -> Iterator[list[Key]]:
        """The keys of each micro-batch from one step up to another."""
        per_rank = self.batch_size // self.ranks
        micro = per_rank // self.accumulate
        shuffled, now = np.empty(0), -1
        for step in range(first_step, last_step):
            epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
            if epoch != now:
                shuffled, now = self.epoch(epoch), epoch
            start = step_in_epoch * self.batch_size + self.rank * per_rank
            mine = shuffled[start : start + per_rank]
            for number in range(self.accumulate):
                yield [(epoch, int(i)) for i in mine[number * micro : (number + 1) * micro]]


class _Steps(Sampler[list[Key]]):
    def __init__(self, order: Order, first_step: int, last_step: int) -> None:
        self.order, self.first_step, self.last_step = order, first_step, last_step

    def __iter__(self) -> Iterator[list[Key]]:
        return self.order.keys(self.first_step, self.last_step)

    def __len__(self) -> int:
        return (self.last_step - self.first_step) * self.order.accumulate


class Samples(Protocol):
    """A data set for the training loop; its batches list the images that could not be read."""

    @property
    def sizes(self) -> Sequence[int]:
        """The side of each view in pixels, for memory estimates."""

    def __getitems__(self, keys: list[Key]) -> Any:
        """A batch of these samples, with `corrupt` as in `Batch`."""


class TwoViews(Dataset[Batch]):
    """Reads an image once and cuts one view of it by each recipe, of `size` unless it has one."""

    def __init__(self, source: Source, recipes: Sequence[ViewRecipe], size: int, seed: int) -> None:
        self.source, self.recipes, self.size, self.seed = source, recipes, size, seed
        self.sizes = [size if recipe.size is None else recipe.size for recipe in recipes]

    def __getitems__(self, keys: list[Key]) -> Batch:
        corrupt: list[tuple[int, str, str]] = []
        prefetch(self.source, [index for _, index in keys])
        images = [self.read(index, corrupt) for _, index in keys]
        sizes = torch.tensor([image.shape[1:] for image in images])
        indices = torch.tensor([index for _, index in keys])
        batch = Batch([], [], [], [], sizes, indices, corrupt)
        for view, recipe in enumerate(self.recipes):
            draws = [
                draw_view(
                    recipe,
                    image.shape[1],
                    image.shape[2],
                    generator(self.seed, epoch, index, view),
                )
                for (epoch, index), image in zip(keys, images, strict=True)
            ]
            crops = [
                crop_view(image, draw, self.sizes[view])
                for image, draw in zip(images, draws, strict=True)
            ]
            # Stacked channels last; the training device converts the layout.
            batch.pixels.append(
                torch.stack([c.permute(1, 2, 0) for c in crops]).permute(0, 3, 1, 2)
            )
            batch.draws.append(torch.from_numpy(np.stack([draw.photometric for draw in draws])))
            batch.boxes.append(torch.tensor([draw.box for draw in draws]))
            batch.flips.append(torch.tensor([draw.flip for draw in draws]))
        return batch

    def read(self, index: int, corrupt: list[tuple[int, str, str]]) -> Tensor:
        """The image; if it is unreadable, a replacement chosen by the index only."""
        for candidate in self.candidates(index):
            try:
                return self.source.read(candidate)
            except UnreadableImage as error:
                corrupt.append((candidate, self.source.describe(candidate), str(error)))
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8)  # `corrupt` stops the run

    def candidates(self, index: int) -> Iterator[int]:
        """The image itself, then its replacements, drawn only when needed."""
        yield index
        yield from generator(self.seed, index).integers(len(self.source), size=TRIES).tolist()


def make_loader(
    dataset: Samples, order: Order, first_step: int, last_step: int, workers: int, pin: bool
) -> DataLoader[Any]:
    """One loader for all remaining steps: workers keep running between epochs."""
    return DataLoader(
        cast(Dataset[Any], dataset),
        batch_sampler=_Steps(order, first_step, last_step),
        collate_fn=_identity,
        num_workers=workers,
        pin_memory=pin,
        worker_init_fn=leave_signals_to_the_parent,
    )


def _identity(batch: Any) -> Any:
    return batch


def finish_views(
    batch: Batch, device: torch.device, mean: Sequence[float], std: Sequence[float]
) -> list[Tensor]:
    """Photometric augmentation on the training device: float32 (B, 3, S, S) per view."""
    return [
        augment_colours(pixels.to(device, non_blocking=True), draws, mean, std)
        for pixels, draws in zip(batch.pixels, batch.draws, strict=True)
    ]
