"""A classifier trained on a backbone, frozen or not: what `linear` and `finetune` share."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lewel.config.evaluate import FinetuneConfig, TrainConfig
from lewel.data.sources.source import Source, blocks_of
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import Batch, Order, TwoViews
from lewel.errors import UserError
from lewel.evaluate.features import layout_of
from lewel.evaluate.scores import accuracy
from lewel.nn.views import Views
from lewel.ops.ranks import on_rank_0, rank
from lewel.optim.lars import LARS
from lewel.optim.schedules import learning_rate
from lewel.optim.sgd import make_sgd
from lewel.tasks.evaluation import EvaluationRun
from lewel.tasks.training import plan_training, train_model
from lewel.train.run import Plan, ready_views
from lewel.transfer.classifier import Classifier


def evaluate_classifier(run: EvaluationRun, source: Source, *, frozen: bool) -> dict[str, Any]:
    """Train a classifier on random crops of labelled images -> its accuracy on whole images."""
    classes = run.evaluator.train.classes
    assert classes is not None
    model = train_classifier(run, source, frozen=frozen).eval()
    (queries, targets), *_ = run.features(run.evaluator.val)

    @torch.no_grad()
    def work(beat: Callable[[], None]) -> dict[str, Any]:
        scores = model.classify(queries.to(run.fabric.device))  # where the device had no room
        return accuracy(scores, targets, classes)

    return on_rank_0(work, run.fabric.device)


def train_classifier(run: EvaluationRun, source: Source, *, frozen: bool) -> Classifier:
    """A classifier trained on random crops and flips."""
    evaluator, config, device = run.evaluator, run.evaluator.config, run.fabric.device
    assert isinstance(config, TrainConfig) and source.labels is not None
    assert source.classes is not None
    model = Classifier(run.extractor.backbone, len(source.classes), frozen=frozen)  # type: ignore[arg-type]
    plan = make_plan(run, config, source)
    labels = torch.tensor(source.labels)
    recipe = ViewRecipe(
        crop_scale=config.crop_scale, jitter_probability=0.0, grey=0.0, blur=0.0, solarise=0.0
    )

    def inputs(batch: Batch) -> tuple[Views, Tensor]:
        mine = labels[batch.indices].to(device, non_blocking=True)
        return ready_views(batch, plan, device), mine

    dataset = TwoViews(source, [recipe], evaluator.network.image_size, config.seed)
    return train_model(run, model, make_optimizer(model, config), plan, dataset, inputs)


def make_plan(run: EvaluationRun, config: TrainConfig, source: Source) -> Plan:
    """The plan of the training; the batch size is at most the number of images."""
    images, ranks = len(source), run.place.ranks
    batch = min(config.batch_size, images) // ranks * ranks
    if batch < 2:
        raise UserError(f"{images} images are too few for {ranks} devices: use --devices 1.")
    rate = config.lr * batch / config.lr_batch_size
    order = Order(images, batch, config.seed, 1, rank(), ranks, blocks_of(source))
    schedule = partial(learning_rate, rate, warmup=0.0, schedule=config.schedule)
    layout = layout_of(run.extractor.backbone)
    return plan_training(
        run,
        order,
        config.epochs * order.steps_per_epoch,
        schedule,
        channels_last=layout == torch.channels_last,
    )


def make_optimizer(model: Classifier, config: TrainConfig) -> Optimizer:
    """The classifier's learning rate is the plan's, the backbone's a multiple of it."""
    decay = config.weight_decay
    groups: list[dict[str, Any]] = [
        {"params": list(model.classify.parameters()), "weight_decay": decay}
    ]
    if isinstance(config, FinetuneConfig):
        scale = config.backbone_lr / config.lr
        weights: list[Tensor] = list(model.backbone.parameters())
        groups.append({"params": weights, "weight_decay": decay, "lr_scale": scale})
    if config.optimiser == "lars":
        return LARS(groups, lr=0.0, momentum=0.9)
    return make_sgd(groups, scaled=config.precision == "16-mixed")
