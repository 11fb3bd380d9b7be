"""Judging a backbone by what a classifier learns on it: linear, fast linear, fine-tuning."""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from lewel.data.loader import Batch, Order, Samples, TwoViews
from lewel.data.sources import Source, Subset, blocks_of
from lewel.data.views import ViewRecipe
from lewel.errors import UserError
from lewel.eval.linear import DECAYS, RATES, sweep
from lewel.eval.scores import judge
from lewel.judge_config import FinetuneConfig, LearnConfig, LinearConfig
from lewel.judging import Job
from lewel.methods.base import Method
from lewel.methods.classifier import Classifier
from lewel.ops.randomness import generator
from lewel.ops.ranks import rank
from lewel.optim.lars import LARS
from lewel.optim.schedules import learning_rate
from lewel.train.checkpoint import Checkpoints
from lewel.train.display import Display
from lewel.train.loop import train
from lewel.train.metrics import Metrics
from lewel.train.monitor import BadImages
from lewel.train.run import Plan, Training, ready_views


def judge_linear(job: Job) -> dict[str, Any]:
    """A linear classifier on the frozen backbone, by random crops or by features made once."""
    config = job.subject.config
    assert isinstance(config, LinearConfig)
    return judge_fast(job) if config.fast else judge_learned(job, job.subject.train, frozen=True)


def judge_fast(job: Job) -> dict[str, Any]:
    """Features once, then a sweep over rates and decays, all candidates at once."""
    subject, config = job.subject, job.subject.config
    assert isinstance(config, LinearConfig) and subject.train.classes is not None
    (features, labels), (queries, truth) = job.features(subject.train, subject.val)
    with job.console.status(f"{len(RATES) * len(DECAYS)} classifiers at once"):
        scores, rate, decay = sweep(
            features,
            labels,
            queries,
            len(subject.train.classes),
            epochs=config.epochs,
            batch_size=config.batch_size,
            seed=config.seed,
        )
    return {"rate": rate, "decay": decay, **judge(scores, truth, subject.train.classes)}


def judge_finetuned(job: Job) -> dict[str, Any]:
    """Backbone and classifier learn from a part of the labels."""
    config = job.subject.config
    assert isinstance(config, FinetuneConfig)
    some = labelled_part(job.subject.train, config.labels, config.seed)
    return {"labelled": len(some), **judge_learned(job, some, frozen=False)}


def labelled_part(source: Source, labels: str, seed: int) -> Source:
    """The images whose labels are used: a share of each class, or those that a file names."""
    assert source.labels is not None and source.classes is not None
    if labels.endswith("%"):
        try:
            share = float(labels[:-1]) / 100
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise UserError(f"--labels {labels}: expected a share such as 1%, 10% or 100%.")
        if share == 1:
            return source
        chosen = [
            generator(seed, number).permutation(mine)[: max(1, round(share * len(mine)))]
            for number in range(len(source.classes))
            for mine in [np.flatnonzero(source.labels == number)]
        ]
        return Subset(source, np.sort(np.concatenate(chosen)))
    path = Path(labels).expanduser()
    if not path.is_file():
        raise UserError(f"--labels {labels}: expected a share such as 1%, or a file of names.")
    wanted = {
        line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    } - {""}
    names = [Path(source.describe(index)).name for index in range(len(source))]
    missing = wanted - set(names)
    if missing or not wanted:
        example = f" (for example {min(missing)})" if missing else ""
        raise UserError(
            f"{len(missing)} of the {len(wanted)} images that {labels} names are not in the "
            f"data{example}: give the data set that the list is for."
        )
    return Subset(source, [index for index, name in enumerate(names) if name in wanted])


def judge_learned(job: Job, source: Source, *, frozen: bool) -> dict[str, Any]:
    """Train a classifier on labelled images by crops and flips, then judge it on whole views."""
    subject = job.subject
    assert subject.train.classes is not None
    model = learn(job, source, frozen=frozen).eval()
    (queries, truth), *_ = job.features(subject.val)
    with torch.no_grad():
        scores = model.classify.cpu()(queries)
    return judge(scores, truth, subject.train.classes)


def learn(job: Job, source: Source, *, frozen: bool) -> Classifier:
    """A classifier that has learned from random crops of labelled images."""
    subject, config, device = job.subject, job.subject.config, job.fabric.device
    assert isinstance(config, LearnConfig) and source.labels is not None
    assert source.classes is not None
    model = Classifier(job.extractor.backbone, len(source.classes), frozen=frozen)  # type: ignore[arg-type]
    plan = plan_of(job, source)
    labels = torch.from_numpy(source.labels)
    recipe = ViewRecipe(
        crop_scale=config.crop_scale, jitter_probability=0.0, grey=0.0, blur=0.0, solarise=0.0
    )

    def inputs(batch: Batch) -> tuple[list[Tensor], Tensor]:
        mine = labels[batch.indices].to(device, non_blocking=True)
        return ready_views(batch, plan, device), mine

    dataset = TwoViews(source, [recipe], subject.network.image_size, config.seed)
    return train_judged(job, model, optimizer_of(model, config), plan, dataset, inputs)


Model = TypeVar("Model", bound=Method)


def train_judged(
    job: Job,
    model: Model,
    optimizer: Optimizer,
    plan: Plan,
    dataset: Samples,
    inputs: Callable[[Any], tuple[Any, ...]],
    *,
    keep: bool = False,
) -> Model:
    """The loop of pre-training with another model in it: same devices, progress and resuming.

    `keep` leaves the last checkpoint, for judging that takes long: the caller `forget`s it.
    """
    question, fabric, folder = job.subject.question(), job.fabric, learning_folder(job)
    if rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    model.to(fabric.device)
    checkpoints = Checkpoints(folder / "checkpoints", 1)
    state = checkpoints.load(lambda text: None)
    step = None if state is None else int(state["step"])
    run = Training(
        fabric=fabric,
        method=model,
        optimizer=optimizer,
        plan=plan,
        dataset=dataset,
        inputs=inputs,
        checkpoints=checkpoints,
        metrics=Metrics(folder / "metrics.jsonl", resumed_at=step, writes=rank() == 0),
        bad_images=BadImages(
            folder / "bad_images.jsonl", plan.order.samples, plan.images_per_epoch, allowed=0.0
        ),
        display=Display(plan.steps, step or 0, plan.order.steps_per_epoch, job.console),
        probe=None,
        on_save=lambda run: None,
        config=question,
        data={},
    )
    if state is not None:
        run.restore(state)
        job.console.print(f"resumed at step {run.step}", highlight=False)
    try:
        train(run)
    finally:
        run.display.close()
    if not keep:
        forget(job)
    return model


def learning_folder(job: Job) -> Path:
    """Where a question's learning keeps its curve and, while it lasts, its checkpoints."""
    asked = json.dumps(job.subject.question(), sort_keys=True)
    name = hashlib.sha256(asked.encode()).hexdigest()[:12]
    return job.subject.results.folder / f"learning-{name}"


def forget(job: Job) -> None:
    """Remove the checkpoints: the answer is all that is kept, with its curve."""
    if rank() == 0:
        shutil.rmtree(learning_folder(job) / "checkpoints")


def plan_of(job: Job, source: Source) -> Plan:
    """The course of the learning; a batch larger than the data becomes the data."""
    images = len(source)
    config, network, ranks = job.subject.config, job.subject.network, job.place.ranks
    assert isinstance(config, LearnConfig)
    batch = min(config.batch_size, images) // ranks * ranks
    if batch < 2:
        raise UserError(f"{images} images are too few for {ranks} devices: use --devices 1.")
    rate = config.lr * batch / config.lr_batch_size
    order = Order(images, batch, config.seed, 1, rank(), ranks, blocks_of(source))
    return Plan(
        order=order,
        steps=config.epochs * order.steps_per_epoch,
        learning_rate=partial(learning_rate, rate, warmup=0.0, schedule=config.schedule),
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


def optimizer_of(model: Classifier, config: LearnConfig) -> Optimizer:
    """The classifier's rate is the plan's; the backbone's, where it learns, is a share of it."""
    decay = config.weight_decay
    groups: list[dict[str, Any]] = [
        {"params": list(model.classify.parameters()), "weight_decay": decay}
    ]
    if isinstance(config, FinetuneConfig):
        share = config.backbone_lr / config.lr
        weights: list[Tensor] = list(model.backbone.parameters())
        groups.append({"params": weights, "weight_decay": decay, "share": share})
    if config.optimiser == "lars":
        return LARS(groups, lr=0.0, momentum=0.9)
    return SGD(groups, lr=0.0, momentum=0.9)
