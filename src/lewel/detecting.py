"""Judging a backbone by the detector that it becomes: Faster R-CNN, Mask R-CNN (section 4.3)."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer

from lewel.backbones import Network
from lewel.data.boxes import BoxBatch, BoxSamples, BoxSource, limited, padded, with_objects
from lewel.data.detection import open_boxes
from lewel.data.instances import rasterise
from lewel.data.lists import read_classes
from lewel.data.loader import Order, make_loader
from lewel.errors import UserError
from lewel.eval.coco_ap import coco_ap
from lewel.eval.detections import Inspector, Seen, results_of
from lewel.eval.voc_ap import Found, Truth, voc_ap
from lewel.judge_config import DetectConfig, JudgeConfig
from lewel.judging import Job
from lewel.learning import forget, train_judged
from lewel.methods.detector import Detector, Settings, c4_detector, fpn_detector
from lewel.nn.norm import precise_statistics, synchronise
from lewel.ops.randomness import seed_of
from lewel.ops.ranks import rank
from lewel.optim.groups import NORMS
from lewel.optim.schedules import detection_rate
from lewel.report.detections import draw_objects, save_pair
from lewel.train.run import Plan

PICTURES = 6
SURE = 0.5  # score above which a picture shows a detection
FEWEST = 10  # batches for batch norm's statistics, however small the data
EPOCH = 50  # steps at least between two checkpoints: small data is passed over several times


def open_detection(config: JudgeConfig, network: Network) -> tuple[BoxSource, BoxSource]:
    """Images with objects: to learn from, and to be judged on."""
    assert isinstance(config, DetectConfig)
    train, val = open_boxes(
        config.data,
        size=config.test_side,
        train=config.train_split,
        val=config.val_split,
        classes=None if config.classes is None else read_classes(config.classes),
    )
    if config.masks and not train.masked:
        raise UserError(f"{config.data} has no masks: leave out --masks, or use COCO or scenes.")
    train = with_objects(limited(train, config.limit, config.seed))
    if not len(train):
        raise UserError(f"{config.data} has no objects to learn from: give other data or splits.")
    return train, limited(val, config.val_limit, config.seed)


def judge_detected(job: Job) -> dict[str, Any]:
    """A detector trained with each rate; the best one's numbers, and all of them by rate."""
    subject, config = job.subject, job.subject.config
    assert isinstance(config, DetectConfig)
    for note in dict.fromkeys((*subject.train.notes, *subject.val.notes)):  # type: ignore[attr-defined]
        job.console.print(note, highlight=False, markup=False, soft_wrap=True)
    if config.train_split is not None and config.train_split == config.val_split:
        job.console.print("The judged images are those that are learned: AP shows memory alone.")
    if len(config.rates) == 1:
        return learn_and_judge(job)
    answers = {}
    for rate in config.rates:
        part = copy.copy(subject)
        part.config = config.model_copy(update={"lr": f"{rate:g}"})
        known = None if config.again else subject.results.answer("detect", part.question())
        if known is None:
            job.console.print(f"lr {rate:g}:", highlight=False)
            about = {"task": "detect", "backbone": subject.network.name, "data": subject.train.name}
            known = {**about, **learn_and_judge(replace(job, subject=part))}
            if rank() == 0:
                subject.results.keep("detect", part.question(), known)
        answers[rate] = known
    best = max(answers, key=lambda rate: float(answers[rate]["AP"]))
    by_rate = {f"{rate:g}": answer["AP"] for rate, answer in answers.items()}
    return {**answers[best], "rates": by_rate, "chosen": "the best AP on the judged images"}


def learn_and_judge(job: Job) -> dict[str, Any]:
    """One detector, from the backbone to its average precision and a few pictures."""
    subject, config, device = job.subject, job.subject.config, job.fabric.device
    assert isinstance(config, DetectConfig)
    train: BoxSource = subject.train  # type: ignore[assignment]
    val: BoxSource = subject.val  # type: ignore[assignment]
    torch.manual_seed(config.seed)
    model = build_detector(copy.deepcopy(job.extractor.backbone), len(train.classes or ()), config)
    if job.place.ranks > 1 and device.type == "cuda":
        synchronise(model)
    plan = plan_of(job, len(train))
    dataset = BoxSamples(
        train, config.short_sides, config.long_side, config.seed, masks=config.masks
    )
    divisor = model.body.divisor

    def inputs(batch: BoxBatch) -> tuple[Tensor, list[tuple[int, int]], list[dict[str, Tensor]]]:
        images, sizes = padded(batch.images, plan.mean, plan.std, divisor, device)
        targets = [{key: one.to(device) for key, one in t.items()} for t in batch.targets]
        return images, sizes, targets

    train_judged(job, model, optimizer_of(model, config), plan, dataset, inputs, keep=True)
    settle(job, model, plan, dataset, inputs)
    model.eval()

    def detect(images: Tensor, sizes: list[tuple[int, int]]) -> list[dict[str, Tensor]]:
        with job.fabric.autocast():
            return model.detect(images, sizes)

    inspector = Inspector(
        detect,
        config.test_side,
        config.long_side,
        plan.mean,
        plan.std,
        divisor,
        device,
        plan.workers,
    )
    with bar(job, f"detecting in {len(val):,} images", len(val) // job.place.ranks) as advance:
        seen = inspector.all(val, advance)
    answer = {"images": len(val), "learned": len(train), **numbers_of(seen, val, config)}
    if rank() == 0:
        answer["pictures"] = draw(job, seen, val)
    forget(job)
    return answer


def build_detector(backbone: nn.Module, classes: int, config: DetectConfig) -> Detector:
    """A detector with fresh heads on a backbone."""
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


def optimizer_of(model: Detector, config: DetectConfig) -> Optimizer:
    """SGD that decays every weight but those of norm layers."""
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
    return SGD([group for group in groups if group["params"]], lr=0.0, momentum=0.9)


def plan_of(job: Job, images: int) -> Plan:
    """The course of the learning; a batch larger than the data becomes the data."""
    config, network, ranks = job.subject.config, job.subject.network, job.place.ranks
    assert isinstance(config, DetectConfig)
    batch = min(config.batch_size, images) // ranks * ranks
    if batch < 1:
        raise UserError(f"{images} images are too few for {ranks} devices: use --devices 1.")
    (rate,) = config.rates
    passes = -(-EPOCH * batch // images) if images < EPOCH * batch else 1
    return Plan(
        order=Order(images * passes, batch, config.seed, 1, rank(), ranks),
        steps=config.iterations,
        learning_rate=partial(
            detection_rate,
            rate * batch / config.lr_batch_size,
            steps=config.iterations,
            warmup=config.warmup,
            decays=config.decays,
        ),
        mean=network.mean,
        std=network.std,
        channels_last=False,
        half=config.precision != "32",
        devices=job.place.devices,
        workers=job.extractor.workers,
        log_every=10,
        checkpoint_minutes=10,
        probe_every=0,
    )


@torch.no_grad()
def settle(
    job: Job,
    model: Detector,
    plan: Plan,
    dataset: BoxSamples,
    inputs: Callable[[BoxBatch], tuple[Any, ...]],
) -> None:
    """PreciseBN: batch norm's statistics from the batches that would have come next."""
    config = job.subject.config
    assert isinstance(config, DetectConfig)
    steps = len(dataset.source) // plan.order.batch_size
    batches = min(config.precise_bn, max(FEWEST, steps))
    if not batches:
        return
    last = plan.steps + batches
    loader = make_loader(dataset, plan.order, plan.steps, last, plan.workers, pin=False)
    with bar(job, "batch norm's statistics", batches) as advance, precise_statistics(model):
        for step, batch in enumerate(loader, start=plan.steps):
            torch.manual_seed(seed_of(config.seed, step, rank(), 0))
            with job.fabric.autocast():
                model(*inputs(batch))
            advance(1)


@contextmanager
def bar(job: Job, words: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar that is seen on the first rank alone; gives what moves it on."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TimeRemainingColumn())
    hidden = rank() != 0
    with Progress(*columns, console=job.console, disable=hidden, transient=True) as progress:
        task = progress.add_task(words, total=total)
        yield lambda images: progress.advance(task, images)


def numbers_of(seen: list[Seen], val: BoxSource, config: DetectConfig) -> dict[str, Any]:
    """AP, AP50 and AP75 by the rule of the data, as shares of 1; others beside them."""
    if val.rule == "coco":
        judged = coco_ap(val.truth(), results_of(seen), masks=config.masks)
        main = {name: judged["box"][name] for name in ("AP", "AP50", "AP75")}
        return {**main, "rule": "COCO", **judged}
    found = [Found(one.boxes, one.classes, one.scores) for one in seen]
    truth = [Truth(*val.objects(index)) for index in range(len(val))]
    by_rule = voc_ap(found, truth, val.classes or ())
    rule = val.rule.removeprefix("voc ")
    main = {name: by_rule[rule][name] for name in ("AP", "AP50", "AP75")}
    return {**main, "rule": f"VOC {rule}", "by_rule": by_rule}


def draw(job: Job, seen: list[Seen], val: BoxSource) -> list[str]:
    """The first images, truth beside prediction, in the run's folder of predictions."""
    config = job.subject.config
    assert isinstance(config, DetectConfig)
    folder = job.subject.results.folder.parent / "predictions"
    fresh = "-untrained" if job.subject.untrained else ""
    names = ("", *(val.classes or ()))
    paths: list[Path] = []
    for one in seen[:PICTURES]:
        image = val.read(one.image).permute(1, 2, 0).numpy()
        height, width = image.shape[:2]
        truth = val.objects(one.image)
        masks = val.masks(one.image, height, width) if config.masks else None
        known = [names[number] for number in truth.classes]
        left = draw_objects(image, truth.boxes, truth.classes.tolist(), known, masks)
        sure = np.flatnonzero(one.scores >= SURE)
        bits = None
        if one.masks is not None:
            drawn = [rasterise(one.masks[n], (height, width), height, width) for n in sure]
            bits = np.array(drawn, np.bool_).reshape(-1, height, width)
        said = [f"{names[one.classes[n]]} {one.scores[n]:.2f}" for n in sure]
        right = draw_objects(image, one.boxes[sure], one.classes[sure].tolist(), said, bits)
        path = folder / f"detect-{val.name}-{config.arch}{fresh}-lr{config.lr}-{one.image + 1}.png"
        save_pair(left, right, f"{val.describe(one.image)}: truth, and scores over {SURE}", path)
        paths.append(path)
    return [path.name for path in paths]
