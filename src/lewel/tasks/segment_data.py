"""Images with masks for `lewel segment`: opened, read one by one, and checked beforehand."""

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lewel.config.evaluate import EvaluateConfig, SegmentConfig
from lewel.config.settings import storage_of
from lewel.data.dense.masks import Masked, open_masks
from lewel.data.dense.voc import IGNORED
from lewel.data.pack.storage import note_on_cache
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import Source
from lewel.data.workers import leave_signals_to_the_parent
from lewel.errors import RunError, UserError
from lewel.interop.backbones import Network
from lewel.ops.ranks import gather_objects, rank, ranks
from lewel.progress import show
from lewel.tasks.evaluation import EvaluationRun


def open_for_segment(
    config: EvaluateConfig, network: Network, notes: list[str]
) -> tuple[Source, Source]:
    """The training and validation set of images with masks."""
    assert isinstance(config, SegmentConfig)
    if config.classes is not None:
        raise UserError("--classes is for images with one class: segment takes all classes.")
    notes += note_on_cache(config.data, storage_of(config))
    return open_masks(
        config.data,
        size=config.crop,
        split=config.split,
        limit=config.limit,
        seed=config.seed,
        storage=storage_of(config),
    )


class Pairs(Dataset[tuple[Tensor | None, Tensor | None, str]]):
    """Images of a source with their masks, or the reason why one cannot be used."""

    def __init__(self, source: Masked, indices: np.ndarray) -> None:
        self.source, self.indices = source, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[Tensor | None, Tensor | None, str]:
        index = int(self.indices[position])
        try:
            return *self.source.pair(index), ""
        except UnreadableImage as error:
            return None, None, f"{self.source.describe(index)}: {error}"

    def loader(
        self, workers: int, pin: bool = False
    ) -> "DataLoader[tuple[Tensor | None, Tensor | None, str]]":
        """A loader of single images, as their shapes differ."""
        return DataLoader(
            self,
            batch_size=None,
            num_workers=workers,
            worker_init_fn=leave_signals_to_the_parent,
            pin_memory=pin,
        )


def check_pairs(run: EvaluationRun, *sources: Masked) -> None:
    """Read every image and mask once, so that none fails after hours of training."""
    faults: list[str] = []
    seen: list[tuple[int, int]] = []  # source and class
    sources = tuple(source for source in sources if source.name != "scenes")
    total = sum(len(source) for source in sources)
    with run.bar(f"checking {total:,} images and masks", total) as bar:
        for number, source in enumerate(sources):
            mine = np.arange(rank(), len(source), ranks())
            for _, mask, fault in Pairs(source, mine).loader(run.extractor.workers):
                faults += [fault] if fault else []
                classes = () if mask is None else mask.unique().tolist()
                seen = sorted({*seen, *((number, one) for one in classes)})
                bar.advance(ranks())
    faults, seen = gather_objects(faults), gather_objects(seen)
    if faults:
        raise RunError(
            f"{len(faults):,} of {total:,} images with masks cannot be used, for example "
            f"{min(faults)}. Repair or remove them."
        )
    absent = {*range(len(sources[0].classes or ()) if sources else 0)} - {one for _, one in seen}
    if absent and rank() == 0:
        some = ", ".join(map(str, sorted(absent)[:5]))
        more = ", ..." if len(absent) > 5 else ""
        show(
            run.console,
            f"{len(absent)} classes occur in no mask ({some}{more}): they count for the mIoU only "
            "where they are predicted. A mask holds class numbers, 0, 1, 2 and so on.",
        )
    for number, source in enumerate(sources):  # the first one is trained on
        known = {one for at, one in seen if at == number and one != IGNORED}
        refuse_trivial(source, known, least=2 if number == 0 else 1)


def refuse_trivial(source: Masked, classes: set[int], least: int) -> None:
    """Raise UserError for a source whose masks hold too few classes."""
    if len(classes) < least:
        found = f"only {IGNORED}, ignored pixels"
        if classes:
            found = f"only class {min(classes)} ({IGNORED} means ignored pixels)"
        raise UserError(
            f"The {len(source):,} masks of {source.name}, for example that of "
            f"{source.describe(0)}, hold {found}: expected {least} or more classes."
        )
