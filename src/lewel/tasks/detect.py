"""`lewel detect`: Faster R-CNN and Mask R-CNN on the backbone (section 4.3)."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from lewel.config.evaluate import DetectConfig, EvaluateConfig
from lewel.config.settings import storage_of
from lewel.data.dense.boxes import BoxBatch, BoxSamples, BoxSource, limited, padded, with_objects
from lewel.data.dense.detection import open_boxes
from lewel.data.dense.instances import rasterise
from lewel.data.pack.storage import note_on_cache
from lewel.data.pack.urls import shown
from lewel.data.sources.list import read_classes
from lewel.data.views.loader import Order, make_loader
from lewel.errors import UserError
from lewel.evaluate.coco_ap import coco_ap
from lewel.evaluate.detections import ImageDetections, Inference, results_of
from lewel.evaluate.voc_ap import Detections, GroundTruth, voc_ap
from lewel.interop.backbones import Network
from lewel.nn.norm import precise_statistics, synchronise
from lewel.ops.randomness import seed_of
from lewel.ops.ranks import rank
from lewel.optim.groups import NORMS
from lewel.optim.schedules import detection_rate
from lewel.optim.sgd import make_sgd
from lewel.pages.detections import draw_objects, save_pair
from lewel.tasks.dense_dry_run import describe_dense
from lewel.tasks.evaluation import EvaluationRun, Task
from lewel.tasks.outcome import Detected
from lewel.tasks.predictions import predictions_folder, start_of, write_detections
from lewel.tasks.training import Prepared, plan_training, train_model
from lewel.train.run import Plan
from lewel.transfer.faster_rcnn import Detector, Settings, c4_detector, fpn_detector

PICTURES = 6
SURE = 0.5  # least score of a detection in a picture
FEWEST = 10  # batches for PreciseBN, also for small data
EPOCH = 50  # least steps between checkpoints: several passes over small data


def open_detection(
    config: EvaluateConfig, network: Network, notes: list[str]
) -> tuple[BoxSource, BoxSource]:
    """The training and validation set of images with boxes."""
    assert isinstance(config, DetectConfig)
    train, val = open_boxes(
        config.data,
        size=config.test_side,
        train=config.train_split,
        val=config.val_split,
        classes=None if config.classes is None else read_classes(config.classes),
        storage=storage_of(config),
    )
    if config.masks and not train.masked:
        raise UserError(
            f"{shown(config.data)} has no masks: leave out --masks, or use COCO or scenes."
        )
    if config.masks:
        train.check_masks()
        val.check_masks()
    train = with_objects(limited(train, config.limit, config.seed))
    if not len(train):
        raise UserError(
            f"{shown(config.data)} has no objects to train on: give other data or splits."
        )
    notes += (*note_on_cache(config.data, storage_of(config)), *train.notes, *val.notes)
    if config.train_split is not None and config.train_split == config.val_split:
        notes.append("Training and validation set are the same: AP shows memorisation.")
    return train, limited(val, config.val_limit, config.seed)


def evaluate_detection(run: EvaluationRun) -> dict[str, Any]:
    """Train a detector on the backbone -> its average precision and a few pictures."""
    evaluator, config = run.evaluator, run.evaluator.config
    assert isinstance(config, DetectConfig)
    train: BoxSource = evaluator.train  # type: ignore[assignment]
    val: BoxSource = evaluator.val  # type: ignore[assignment]
    prepared = prepare(run)
    train_model(run, *prepared[:5])
    set_precise_statistics(run, prepared)
    with run.bar(f"detecting in {len(val):,} images", len(val) // run.place.ranks) as bar:
        detections = inference_of(run, prepared).run(val, bar.advance)
    metrics = numbers_of(detections, val, config)
    result = {"images": len(val), "training_images": len(train), **metrics}
    folder = predictions_folder(evaluator, "detect")
    if config.save_predictions:
        result["predictions"] = folder
    if rank() == 0:
        result["pictures"] = draw(run, detections, val)
        if config.save_predictions:
            write_detections(evaluator.results.folder.parent / folder, detections, val)
    return result


def prepare(run: EvaluationRun) -> Prepared:
    """A detector on the backbone, and all that its training takes."""
    evaluator, config, device = run.evaluator, run.evaluator.config, run.fabric.device
    assert isinstance(config, DetectConfig)
    train: BoxSource = evaluator.train  # type: ignore[assignment]
    val: BoxSource = evaluator.val  # type: ignore[assignment]
    torch.manual_seed(config.seed)
    model = build_detector(copy.deepcopy(run.extractor.backbone), len(train.classes or ()), config)
    if run.place.ranks > 1 and device.type == "cuda":
        synchronise(model)
    plan = make_plan(run, config, len(train))
    dataset = BoxSamples(
        train, config.short_sides, config.long_side, config.seed, masks=config.masks
    )
    divisor = model.body.divisor

    def inputs(batch: BoxBatch) -> tuple[Tensor, list[tuple[int, int]], list[dict[str, Tensor]]]:
        images, sizes = padded(batch.images, plan.mean, plan.std, divisor, device)
        targets = [{key: one.to(device) for key, one in t.items()} for t in batch.targets]
        return images, sizes, targets

    def predict_one(index: int) -> None:
        one = val.subset(np.array([index]))
        inference_of(run, prepared).run(one, lambda images: None)

    prepared = Prepared(
        model, make_optimizer(model, config), plan, dataset, inputs, predict_one, config.precise_bn
    )
    return prepared


def inference_of(run: EvaluationRun, prepared: Prepared) -> Inference:
    """A trained detector for whole images."""
    config, plan = run.evaluator.config, prepared.plan
    assert isinstance(config, DetectConfig)
    model: Detector = prepared.model.eval()  # type: ignore[assignment]

    def detect(images: Tensor, sizes: list[tuple[int, int]]) -> list[dict[str, Tensor]]:
        with run.fabric.autocast():
            return model.detect(images, sizes)

    return Inference(
        detect,
        config.test_side,
        config.long_side,
        plan.mean,
        plan.std,
        model.body.divisor,
        run.fabric.device,
        plan.workers,
    )


def build_detector(backbone: nn.Module, classes: int, config: DetectConfig) -> Detector:
    """A detector with randomly initialised heads on a backbone."""
    settings = Settings(rois=config.rois, anchors=config.anchors, proposals=config.proposals)
    backbone.train()
    if config.arch == "c4":
        return c4_detector(backbone, classes, config.masks, config.width, settings)  # type: ignore[arg-type]
    return fpn_detector(
        backbone,  # type: ignore[arg-type]
        classes,
        config.masks,
        config.width,
        config.hidden,
        settings,
    )


def make_optimizer(model: Detector, config: DetectConfig) -> Optimizer:
    """SGD with weight decay on all weights but those of norm layers."""
    norms = {
        id(weight)
        for module in model.modules()
        if isinstance(module, (*NORMS, _BatchNorm))
        for weight in module.parameters(recurse=False)
    }
    weights = [w for w in model.parameters() if id(w) not in norms]
    scales = [w for w in model.parameters() if id(w) in norms]
    groups = [
        {"params": weights, "weight_decay": config.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    used = [group for group in groups if group["params"]]
    return make_sgd(used, scaled=config.precision == "16-mixed")


def make_plan(run: EvaluationRun, config: DetectConfig, images: int) -> Plan:
    """The plan of the training; the batch size is at most the number of images."""
    ranks = run.place.ranks
    batch = min(config.batch_size, images) // ranks * ranks
    if batch < 1:
        raise UserError(f"{images} images are too few for {ranks} devices: use --devices 1.")
    (rate,) = config.rates
    passes = -(-EPOCH * batch // images) if images < EPOCH * batch else 1
    order = Order(images * passes, batch, config.seed, 1, rank(), ranks)
    schedule = partial(
        detection_rate,
        rate * batch / config.lr_batch_size,
        steps=config.iterations,
        warmup=config.warmup,
        decays=config.decays,
    )
    return plan_training(run, order, config.iterations, schedule)


@torch.no_grad()
def set_precise_statistics(run: EvaluationRun, prepared: Prepared) -> None:
    """PreciseBN: batch norm statistics over the batches after the last step."""
    config, model, plan = run.evaluator.config, prepared.model, prepared.plan
    assert isinstance(config, DetectConfig)
    steps = len(run.evaluator.train) // plan.order.batch_size
    batches = min(config.precise_bn, max(FEWEST, steps))
    if not batches:
        return
    last = plan.steps + batches
    loader = make_loader(prepared.dataset, plan.order, plan.steps, last, plan.workers, pin=False)
    with run.bar("PreciseBN", batches) as bar, precise_statistics(model):
        for step, batch in enumerate(loader, start=plan.steps):
            torch.manual_seed(seed_of(config.seed, step, rank(), 0))
            with run.fabric.autocast():
                model(*prepared.inputs(batch))
            bar.advance(1)


def numbers_of(
    detections: list[ImageDetections], val: BoxSource, config: DetectConfig
) -> dict[str, Any]:
    """AP, AP50 and AP75 by the metric of the data set, as fractions of 1; others beside them."""
    if val.rule == "coco":
        scores = coco_ap(val.coco_ground_truth(), results_of(detections), masks=config.masks)
        main = {name: scores["box"][name] for name in ("AP", "AP50", "AP75")}
        return {**main, "rule": "COCO", **scores}
    found = [Detections(one.boxes, one.classes, one.scores) for one in detections]
    ground_truth = [GroundTruth(*val.objects(index)) for index in range(len(val))]
    by_rule = voc_ap(found, ground_truth, val.classes or ())
    rule = val.rule.removeprefix("voc ")
    main = {name: by_rule[rule][name] for name in ("AP", "AP50", "AP75")}
    return {**main, "rule": f"VOC {rule}", "by_rule": by_rule}


def draw(run: EvaluationRun, detections: list[ImageDetections], val: BoxSource) -> list[str]:
    """The first images, ground truth beside prediction, in the run's folder of predictions."""
    config = run.evaluator.config
    assert isinstance(config, DetectConfig)
    folder = run.evaluator.results.folder.parent / "predictions"
    suffix = start_of(run.evaluator)
    names = ("", *(val.classes or ()))
    paths: list[Path] = []
    for one in detections[:PICTURES]:
        image = val.read(one.image).permute(1, 2, 0).numpy()
        height, width = image.shape[:2]
        ground_truth = val.objects(one.image)
        masks = val.masks(one.image, height, width) if config.masks else None
        known = [names[number] for number in ground_truth.classes]
        left = draw_objects(image, ground_truth.boxes, ground_truth.classes.tolist(), known, masks)
        sure = np.flatnonzero(one.scores >= SURE)
        bits = None
        if one.masks is not None:
            drawn = [rasterise(one.masks[n], (height, width), height, width) for n in sure]
            bits = np.array(drawn, np.bool_).reshape(-1, height, width)
        labels = [f"{names[one.classes[n]]} {one.scores[n]:.2f}" for n in sure]
        right = draw_objects(image, one.boxes[sure], one.classes[sure].tolist(), labels, bits)
        path = folder / f"detect-{val.name}-{config.arch}{suffix}-lr{config.lr}-{one.image + 1}.png"
        caption = f"{val.describe(one.image)}: ground truth, and scores over {SURE}"
        paths.append(save_pair(left, right, caption, path))
    return [path.name for path in paths]


def detect(backbone: str, config: DetectConfig, out: Path | None, console: Console) -> Detected:
    """The average precision of the best learning rate, cached or computed now."""
    result, file = DETECT.evaluate_each_lr(backbone, config, out, console, "AP")
    return Detected(file, result)


def describe(backbone: str, config: DetectConfig, out: Path | None) -> dict[str, Any]:
    """What an evaluation would take, without training."""
    return describe_dense(DETECT, prepare, backbone, config, out)


DETECT = Task("detect", evaluate_detection, open_detection, fixed_shapes=False)
