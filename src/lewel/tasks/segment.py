"""`lewel segment`: semantic segmentation with a dilated FCN on the backbone (section 4.3)."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lewel.config.evaluate import EvaluateConfig, SegmentConfig
from lewel.config.settings import storage_of
from lewel.data.dense.mask_crops import MaskBatch, MaskCrops, scaled
from lewel.data.dense.masks import Masked, open_masks
from lewel.data.dense.voc import IGNORED
from lewel.data.pack.storage import note_on_cache
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import Source
from lewel.data.views.augment import augment_colours, normalise
from lewel.data.views.loader import Order
from lewel.data.views.resize import resize
from lewel.data.workers import leave_signals_to_the_parent
from lewel.errors import RunError, UserError
from lewel.evaluate.iou import count_pixels, mean_iou
from lewel.files import free_path, write_marked
from lewel.interop.backbones import Network
from lewel.nn.norm import synchronise
from lewel.ops.ranks import gather, gather_objects, rank, ranks
from lewel.optim.schedules import poly
from lewel.optim.sgd import make_sgd
from lewel.pages.segments import segmentation_picture
from lewel.tasks.dense_dry_run import describe_dense
from lewel.tasks.evaluation import EvaluationRun, Task
from lewel.tasks.outcome import Segmented
from lewel.tasks.predictions import predictions_folder, start_of, write_classes, write_mask
from lewel.tasks.training import Prepared, plan_training, train_model
from lewel.train.run import Plan
from lewel.transfer.dilation import dense
from lewel.transfer.fcn import FCN

PICTURES = 6
LAST_FROM = 128  # pixels of a crop, from which channels_last is faster
# oneDNN's strided 1x1 convolutions of fewer channels write past their memory in channels_last.
NARROWEST = 16


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


def evaluate_segmentation(run: EvaluationRun) -> dict[str, Any]:
    """Train an FCN together with the backbone -> its mIoU on whole images."""
    evaluator, config = run.evaluator, run.evaluator.config
    train: Masked = evaluator.train  # type: ignore[assignment]
    val: Masked = evaluator.val  # type: ignore[assignment]
    assert isinstance(config, SegmentConfig) and train.classes is not None
    check_pairs(run, train, val)
    prepared = prepare(run)
    model: FCN = prepared.model  # type: ignore[assignment]
    train_model(run, *prepared[:5])
    torch.backends.cudnn.benchmark = False  # whole images have many shapes
    counts, pictures = predict(run, model.eval(), val)
    stride = model.features.stride
    about = {"lr": config.rates[0], "output_stride": stride, "training_images": len(train)}
    result = {**mean_iou(counts, train.classes), **about, "pictures": pictures}
    if config.save_predictions:
        result["predictions"] = predictions_folder(evaluator, "segment")
    return result


def prepare(run: EvaluationRun) -> Prepared:
    """An FCN on the backbone, and all that its training takes."""
    config, device = run.evaluator.config, run.fabric.device
    train: Masked = run.evaluator.train  # type: ignore[assignment]
    val: Masked = run.evaluator.val  # type: ignore[assignment]
    assert isinstance(config, SegmentConfig) and train.classes is not None
    network = run.evaluator.network
    features = dense(run.extractor.backbone, network.name)  # type: ignore[arg-type]
    model = FCN(
        features.to(device),
        len(train.classes),
        channels=config.channels,
        auxiliary_channels=config.auxiliary_channels,
    )
    if config.sync_batch_norm and ranks() > 1:
        synchronise(model)
    plan = make_plan(run, config, len(train))
    layout = torch.channels_last if plan.channels_last else torch.contiguous_format
    model.to(device, memory_format=layout)  # type: ignore[call-overload]

    def inputs(batch: MaskBatch) -> tuple[list[Tensor], Tensor]:
        pixels = batch.pixels.to(device, non_blocking=True)
        images = augment_colours(pixels, batch.draws, plan.mean, plan.std)
        masks = batch.masks.to(device, non_blocking=True)
        return [images.contiguous(memory_format=layout)], masks.long()

    crops = MaskCrops(train, config.crop, config.short_side, config.seed)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = make_sgd(
        weights, weight_decay=config.weight_decay, scaled=config.precision == "16-mixed"
    )

    def predict_one(index: int) -> None:
        classes_of(run, model, val.read(index))

    return Prepared(model, optimizer, plan, crops, inputs, predict_one)


def make_plan(run: EvaluationRun, config: SegmentConfig, images: int) -> Plan:
    """The plan of the training; the batch size is at most the number of images."""
    ranks = run.place.ranks
    batch = min(config.batch_size, images) // ranks * ranks
    if batch < 2 * ranks:
        raise UserError(
            f"A batch of {batch} (of {images:,} images) is too small for {ranks} devices: "
            "expected 2 or more images per device. Use a larger --batch-size or fewer --devices."
        )
    (rate,), scale = config.rates, batch / config.lr_batch_size
    schedule = partial(poly, rate * scale, power=config.power, lowest=config.min_lr * scale)
    order = Order(images, batch, config.seed, 1, rank(), ranks)
    return plan_training(
        run,
        order,
        config.iterations,
        schedule,
        channels_last=config.crop >= LAST_FROM and run.evaluator.network.width >= NARROWEST,
        saves_epochs=False,
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
    for number, source in enumerate(sources):  # the first one is trained on
        known = {one for at, one in seen if at == number and one != IGNORED}
        refuse_trivial(source, known, least=2 if number == 0 else 1)


def refuse_trivial(source: Masked, classes: set[int], least: int) -> None:
    """Raise UserError for a source whose masks hold too few classes."""
    if len(classes) < least:
        found = f"only class {min(classes)}" if classes else f"only {IGNORED}, ignored pixels"
        raise UserError(
            f"The {len(source):,} masks of {source.name}, for example that of "
            f"{source.describe(0)}, hold {found}: expected {least} or more classes."
        )


@torch.no_grad()
def predict(run: EvaluationRun, model: FCN, source: Masked) -> tuple[Tensor, list[str]]:
    """Pixel counts (N, 3, K) of whole images, distributed over the ranks; pictures."""
    assert source.classes is not None
    most = -(-len(source) // ranks())  # equal on all ranks: some take an image twice
    subset = np.resize(np.arange(len(source)), most * ranks()).reshape(most, ranks())[:, rank()]
    chosen = np.linspace(0, len(subset) - 1, min(PICTURES, len(subset))).astype(int).tolist()
    rows: list[Tensor] = []
    pictures: list[str] = []
    folder = kept_in(run)
    with run.bar(f"segmenting {len(source):,} images", len(subset)) as bar:
        device, workers = run.fabric.device, run.extractor.workers
        pairs = Pairs(source, subset).loader(workers, pin=device.type == "cuda")
        for position, pair in enumerate(pairs):
            image, mask, fault = pair
            if image is None or mask is None:
                raise RunError(f"{fault}.")
            found = classes_of(run, model, image)
            known = mask.to(device, non_blocking=True)
            rows.append(count_pixels(found, known, len(source.classes)))
            if rank() == 0 and position in chosen:
                number, name = len(pictures) + 1, source.describe(int(subset[position]))
                pictures.append(keep_picture(run, number, image, mask, found.cpu(), name))
            if folder is not None:
                write_mask(folder, source.describe(int(subset[position])), found.cpu())
            bar.advance(1)
    order = torch.arange(most * ranks()).view(ranks(), most).T.flatten()[: len(source)]
    counts = gather(torch.stack(rows)).cpu()[order]
    return counts, pictures


def classes_of(run: EvaluationRun, model: FCN, image: Tensor) -> Tensor:
    """The most probable class of each pixel of an image (3, H, W), uint8 (H, W)."""
    config, network = run.evaluator.config, run.evaluator.network
    assert isinstance(config, SegmentConfig)
    shape = scaled(image, config.short_side)
    resized = resize(image, *shape)
    pixels = resized[None].to(run.fabric.device, non_blocking=True).float() / 255
    with run.fabric.autocast():
        scores = model.scores(normalise(pixels, network.mean, network.std))
    if scores.shape[2:] != image.shape[1:]:
        scores = torch.nn.functional.interpolate(scores, image.shape[1:], mode="bilinear")
    return scores[0].argmax(0).to(torch.uint8)


def kept_in(run: EvaluationRun) -> Path | None:
    """The folder of all predicted masks, with the names of the classes; None if not wanted."""
    config, evaluator = run.evaluator.config, run.evaluator
    assert isinstance(config, SegmentConfig)
    if not config.save_predictions:
        return None
    folder = evaluator.results.folder.parent / predictions_folder(evaluator, "segment")
    if rank() == 0:
        write_classes(folder, evaluator.train.classes or ())
    return folder


def keep_picture(
    run: EvaluationRun, number: int, image: Tensor, mask: Tensor, found: Tensor, name: str
) -> str:
    """Write image, ground truth and prediction side by side -> the path in the run folder."""
    config, evaluator = run.evaluator.config, run.evaluator
    assert isinstance(config, SegmentConfig)
    folder = evaluator.results.folder.parent
    about = f"{evaluator.train.name}{start_of(evaluator)}-lr{config.lr}-{number}"
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    classes = evaluator.train.classes or ()
    picture = segmentation_picture(image, mask, found, classes, name)
    file = free_path(folder / f"predictions/segment-{about}.png", "segment")
    write_marked(file, "segment", lambda aside: picture.save(aside, format="PNG"))
    return f"predictions/{file.name}"


def segment(backbone: str, config: SegmentConfig, out: Path | None, console: Console) -> Segmented:
    """The mIoU of the best learning rate, cached or computed now."""
    result, file = SEGMENT.evaluate_each_lr(backbone, config, out, console, "miou")
    return Segmented(file, result)


def describe(backbone: str, config: SegmentConfig, out: Path | None) -> dict[str, Any]:
    """What an evaluation would take, without training."""
    return describe_dense(SEGMENT, prepare, backbone, config, out)


SEGMENT = Task("segment", evaluate_segmentation, open_for_segment)
