"""Batches of two views, in an order and with draws that depend on nothing but the seed."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lewel.data.augment import distort
from lewel.data.blocks import block_shuffle
from lewel.data.images import UnreadableImage
from lewel.data.sources import Source
from lewel.data.views import ViewRecipe, crop_view, draw_view
from lewel.ops.randomness import generator

Key = tuple[int, int]  # epoch, index of the sample
TRIES = 100  # replacements for one unreadable image before the data as a whole is called bad


class Batch(NamedTuple):
    """B samples as the workers make them, one entry a view in each list."""

    pixels: list[Tensor]  # uint8 (B, 3, S, S)
    draws: list[Tensor]  # float32 (B, P), what `distort` does to each sample
    boxes: list[Tensor]  # int64 (B, 4), top, left, height, width of the crop
    flips: list[Tensor]  # bool (B,)
    indices: Tensor  # int64 (B,), the samples asked for
    bad: list[tuple[int, str, str]]  # index, name and reason of each image that could not be read


@dataclass(frozen=True)
class Order:
    """Which samples the micro-batches hold: rank r takes slice r of each global batch."""

    samples: int
    batch_size: int  # the total, over ranks and micro-batches
    seed: int
    accumulate: int = 1
    rank: int = 0
    ranks: int = 1
    # The block that each sample is stored in, (samples,), where that matters.
    blocks: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def steps_per_epoch(self) -> int:
        """The last partial batch is dropped."""
        return self.samples // self.batch_size

    def epoch(self, epoch: int) -> np.ndarray:
        """All sample indices in the order of this epoch."""
        draw = generator(self.seed, epoch)
        if self.blocks is None:
            return draw.permutation(self.samples)
        return block_shuffle(self.blocks, self.batch_size, draw)

    def keys(self, first_step: int, last_step: int) -> Iterator[list[Key]]:
        """The keys of each micro-batch from one step up to another."""
        share = self.batch_size // self.ranks
        micro = share // self.accumulate
        shuffled, now = np.empty(0), -1
        for step in range(first_step, last_step):
            epoch, position = divmod(step, self.steps_per_epoch)
            if epoch != now:
                shuffled, now = self.epoch(epoch), epoch
            start = position * self.batch_size + self.rank * share
            mine = shuffled[start : start + share]
            for part in range(self.accumulate):
                yield [(epoch, int(i)) for i in mine[part * micro : (part + 1) * micro]]


class _Steps(Sampler[list[Key]]):
    def __init__(self, order: Order, first_step: int, last_step: int) -> None:
        self.order, self.first_step, self.last_step = order, first_step, last_step

    def __iter__(self) -> Iterator[list[Key]]:
        return self.order.keys(self.first_step, self.last_step)

    def __len__(self) -> int:
        return (self.last_step - self.first_step) * self.order.accumulate


class Samples(Protocol):
    """What training reads: batches of any kind that name the images that could not be read."""

    @property
    def size(self) -> int:
        """The side of the images that a network sees, for estimates of memory."""

    def __getitems__(self, keys: list[Key]) -> Any:
        """A batch of these samples, with `bad` as in `Batch`."""


class TwoViews(Dataset[Batch]):
    """Reads an image once and cuts one view of it by each recipe."""

    def __init__(self, source: Source, recipes: Sequence[ViewRecipe], size: int, seed: int) -> None:
        self.source, self.recipes, self.size, self.seed = source, recipes, size, seed

    def __getitems__(self, keys: list[Key]) -> Batch:
        batch = Batch([], [], [], [], torch.tensor([index for _, index in keys]), [])
        images = [self.read(index, batch.bad) for _, index in keys]
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
                crop_view(image, draw, self.size) for image, draw in zip(images, draws, strict=True)
            ]
            # Interleaved as they are: to part the channels is left to the training device.
            batch.pixels.append(
                torch.stack([c.permute(1, 2, 0) for c in crops]).permute(0, 3, 1, 2)
            )
            batch.draws.append(torch.from_numpy(np.stack([draw.distortion for draw in draws])))
            batch.boxes.append(torch.tensor([draw.box for draw in draws]))
            batch.flips.append(torch.tensor([draw.flip for draw in draws]))
        return batch

    def read(self, index: int, bad: list[tuple[int, str, str]]) -> Tensor:
        """The image, or in place of an unreadable one another, chosen by the index alone."""
        for candidate in self.candidates(index):
            try:
                return self.source.read(candidate)
            except UnreadableImage as error:
                bad.append((candidate, self.source.describe(candidate), str(error)))
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8)  # the run stops by `bad`

    def candidates(self, index: int) -> Iterator[int]:
        """The image itself, then those that may stand in for it, drawn only when one is needed."""
        yield index
        yield from generator(self.seed, index).integers(len(self.source), size=TRIES).tolist()


def make_loader(
    dataset: Samples, order: Order, first_step: int, last_step: int, workers: int, pin: bool
) -> DataLoader[Any]:
    """One loader for all steps that remain: workers never stop between epochs."""
    return DataLoader(
        cast(Dataset[Any], dataset),
        batch_sampler=_Steps(order, first_step, last_step),
        collate_fn=_as_it_is,
        num_workers=workers,
        pin_memory=pin,
        worker_init_fn=leave_signals_to_the_parent,
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def leave_signals_to_the_parent(worker: int) -> None:
    """Signals may reach the whole process group: the parent finishes its step, workers must live.

    They end with their parent, by themselves.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def reader_died(error: RuntimeError) -> bool:
    """Whether torch says that a worker was ended, and not that something was raised in one."""
    return "DataLoader worker" in str(error) and not str(error).startswith("Caught ")


def finish_views(
    batch: Batch, device: torch.device, mean: Sequence[float], std: Sequence[float]
) -> list[Tensor]:
    """The photometric half of the views, on the training device: float32 (B, 3, S, S) each."""
    return [
        distort(pixels.to(device, non_blocking=True), draws, mean, std)
        for pixels, draws in zip(batch.pixels, batch.draws, strict=True)
    ]


def cores(devices: int = 1) -> int:
    """Processor cores for each of so many devices."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (mine or 1) // devices)
