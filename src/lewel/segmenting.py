"""Judging a backbone by the classes of pixels that a dilated FCN on it learns to tell."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

from lewel.backbones import Network
from lewel.data.augment import distort, normalise
from lewel.data.images import UnreadableImage
from lewel.data.loader import Order, leave_signals_to_the_parent
from lewel.data.mask_crops import MaskBatch, MaskCrops, scaled
from lewel.data.masks import Masked, open_masks
from lewel.data.resize import resize
from lewel.data.sources import Source
from lewel.errors import RunError, UserError
from lewel.eval.iou import count_pixels, judge_masks
from lewel.files import write_atomically
from lewel.judge_config import JudgeConfig, SegmentConfig
from lewel.judging import Job, Subject, ask
from lewel.learning import train_judged
from lewel.methods.segmenter import Segmenter
from lewel.nn.dense import dense
from lewel.nn.norm import synchronise
from lewel.ops.ranks import gather, gather_things, rank, ranks
from lewel.optim.schedules import poly
from lewel.report.segments import side_by_side
from lewel.train.devices import rank_from_outside
from lewel.train.run import Plan

TASK = "segment"
PICTURES = 6


def segment(
    what: str, config: SegmentConfig, out: Path | None, console: Console
) -> tuple[dict[str, Any], Path]:
    """The answer for the best of the rates, and its file; each rate is an answer of its own."""
    found: dict[str, dict[str, Any]] = {}
    for rate in config.rates:
        one = config.model_copy(update={"lr": f"{rate:g}"})
        if len(config.rates) > 1:
            console.print(f"lr {rate:g}", highlight=False)
        answer, path = ask(TASK, judge_segmented, what, one, out, console, open_for_segment)
        found[one.lr] = answer
    if len(found) == 1 or rank_from_outside() != 0:
        return answer, path
    best = max(found, key=lambda rate: float(found[rate]["miou"]))
    search = {rate: one["miou"] for rate, one in found.items()}
    chosen = {**found[best], "search": search, "chosen_on": "the judged split"}
    subject = Subject(what, config, out, open_for_segment)
    return chosen, subject.results.keep(TASK, subject.question(), chosen)


def open_for_segment(config: JudgeConfig, network: Network) -> tuple[Source, Source]:
    """Images with masks."""
    assert isinstance(config, SegmentConfig)
    if config.classes is not None:
        raise UserError("--classes is for images with one class: segment takes all classes.")
    return open_masks(
        config.data,
        size=config.crop,
        split=config.split,
        limit=config.limit,
        seed=config.seed,
    )


def judge_segmented(job: Job) -> dict[str, Any]:
    """Train an FCN with all of the backbone, then judge it on whole images."""
    subject, config = job.subject, job.subject.config
    train: Masked = subject.train  # type: ignore[assignment]
    val: Masked = subject.val  # type: ignore[assignment]
    assert isinstance(config, SegmentConfig) and train.classes is not None
    check_pairs(job, train, val)
    features = dense(job.extractor.backbone, subject.network.name)  # type: ignore[arg-type]
    model = Segmenter(
        features.to(job.fabric.device),
        len(train.classes),
        channels=config.channels,
        auxiliary_channels=config.auxiliary_channels,
    )
    if config.sync_batch_norm and ranks() > 1:
        synchronise(model)
    learn(job, model, train).eval()
    counts, pictures = predict(job, model, val)
    about = {"lr": config.rates[0], "output_stride": features.stride, "learned_from": len(train)}
    return {**judge_masks(counts, train.classes), **about, "pictures": pictures}


def learn(job: Job, model: Segmenter, source: Masked) -> Segmenter:
    """Let all weights learn from random crops."""
    config, device = job.subject.config, job.fabric.device
    assert isinstance(config, SegmentConfig)
    plan = plan_of(job, config, len(source))
    layout = torch.channels_last if plan.channels_last else torch.contiguous_format
    model.to(device, memory_format=layout)  # type: ignore[call-overload]

    def inputs(batch: MaskBatch) -> tuple[list[Tensor], Tensor]:
        pixels = batch.pixels.to(device, non_blocking=True)
        images = distort(pixels, batch.draws, plan.mean, plan.std)
        masks = batch.masks.to(device, non_blocking=True)
        return [images.contiguous(memory_format=layout)], masks.long()

    crops = MaskCrops(source, config.crop, config.short_side, config.seed)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = SGD(weights, lr=0.0, momentum=0.9, weight_decay=config.weight_decay)
    return train_judged(job, model, optimizer, plan, crops, inputs)


def plan_of(job: Job, config: SegmentConfig, images: int) -> Plan:
    """The course of the learning; a batch larger than the data becomes the data."""
    network, place = job.subject.network, job.place
    batch = min(config.batch_size, images) // place.ranks * place.ranks
    if batch < 2 * place.ranks:
        raise UserError(
            f"A batch of {batch} is too small for {place.ranks} devices, of {images:,} images in "
            "all: expected 2 or more for each device."
        )
    (rate,), scale = config.rates, batch / config.lr_batch_size
    return Plan(
        order=Order(images, batch, config.seed, 1, rank(), place.ranks),
        steps=config.iterations,
        learning_rate=partial(poly, rate * scale, power=config.power, lowest=config.min_lr * scale),
        mean=network.mean,
        std=network.std,
        channels_last=config.crop >= 128,
        half=config.precision != "32",
        devices=place.devices,
        workers=job.extractor.workers,
        log_every=10,
        checkpoint_minutes=10,
        probe_every=0,
        saves_epochs=False,
    )


class Pairs(Dataset[tuple[Tensor | None, Tensor | None, str]]):
    """The chosen images of a source with their masks, or the reason why one can't be used."""

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

    def loader(self, workers: int) -> "DataLoader[tuple[Tensor | None, Tensor | None, str]]":
        """One image at a time: each has a shape of its own."""
        return DataLoader(
            self,
            batch_size=None,
            num_workers=workers,
            worker_init_fn=leave_signals_to_the_parent,
        )


def bar(job: Job) -> Progress:
    """A bar on the first rank."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TimeRemainingColumn())
    return Progress(*columns, console=job.console, disable=rank() != 0, transient=True)


def check_pairs(job: Job, *sources: Masked) -> None:
    """Read every image and mask once: none of them may end the work after hours of learning."""
    faults: list[str] = []
    sources = tuple(source for source in sources if source.name != "scenes")
    total = sum(len(source) for source in sources)
    with bar(job) as progress:
        shown = progress.add_task(f"checking {total:,} images and masks", total=total)
        for source in sources:
            mine = np.arange(rank(), len(source), ranks())
            for _, _, fault in Pairs(source, mine).loader(job.extractor.workers):
                faults += [fault] if fault else []
                progress.advance(shown, ranks())
    faults = gather_things(faults)
    if faults:
        raise RunError(
            f"{len(faults):,} of {total:,} images with masks can't be used, for example "
            f"{min(faults)}. Mend or remove them."
        )


@torch.no_grad()
def predict(job: Job, model: Segmenter, source: Masked) -> tuple[Tensor, list[str]]:
    """Pixel counts (N, 3, K) of whole images, of which each rank does its share; pictures."""
    assert source.classes is not None
    most = -(-len(source) // ranks())  # all ranks have as many: some take an image twice
    share = np.resize(np.arange(len(source)), most * ranks()).reshape(most, ranks())[:, rank()]
    chosen = np.linspace(0, len(share) - 1, min(PICTURES, len(share))).astype(int).tolist()
    rows: list[Tensor] = []
    pictures: list[str] = []
    with bar(job) as progress:
        shown = progress.add_task(f"segmenting {len(source):,} images", total=len(share))
        for position, pair in enumerate(Pairs(source, share).loader(job.extractor.workers)):
            image, mask, fault = pair
            if image is None or mask is None:
                raise RunError(f"{fault}.")
            found = classes_of(job, model, image)
            rows.append(count_pixels(found, mask, len(source.classes)))
            if rank() == 0 and position in chosen:
                pictures.append(keep_picture(job, len(pictures) + 1, image, mask, found))
            progress.advance(shown)
    order = torch.arange(most * ranks()).view(ranks(), most).T.flatten()[: len(source)]
    counts = gather(torch.stack(rows).to(job.fabric.device)).cpu()[order]
    return counts, pictures


def classes_of(job: Job, model: Segmenter, image: Tensor) -> Tensor:
    """The most probable class of each pixel of an image (3, H, W), uint8 (H, W) on the CPU."""
    config, network = job.subject.config, job.subject.network
    assert isinstance(config, SegmentConfig)
    shape = scaled(image, config.short_side)
    resized = resize(image, *shape)
    pixels = resized[None].to(job.fabric.device).float() / 255
    with job.fabric.autocast():
        scores = model.scores(normalise(pixels, network.mean, network.std))
    if scores.shape[2:] != image.shape[1:]:
        scores = torch.nn.functional.interpolate(scores, image.shape[1:], mode="bilinear")
    return scores[0].argmax(0).to(torch.uint8).cpu()


def keep_picture(job: Job, number: int, image: Tensor, *masks: Tensor) -> str:
    """Write image, truth and prediction side by side; the path from the run folder."""
    config, subject = job.subject.config, job.subject
    assert isinstance(config, SegmentConfig)
    fresh = "-untrained" if subject.untrained else ""
    run = subject.results.folder.parent
    name = f"predictions/segment-{subject.train.name}{fresh}-lr{config.lr}-{number}.png"
    (run / "predictions").mkdir(exist_ok=True)
    picture = side_by_side(image, *masks)
    write_atomically(run / name, lambda aside: picture.save(aside, format="PNG"))
    return name
