"""Training of a model on top of a backbone, by the loop of pre-training."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch.optim import Optimizer

from lewel.data.sources.source import is_remote
from lewel.data.views.loader import Order, Samples
from lewel.nn.trainable import Trainable
from lewel.ops.ranks import gather_objects, rank
from lewel.progress import show
from lewel.tasks.evaluation import EvaluationRun
from lewel.train.checkpoint import Checkpoints
from lewel.train.devices import HALF
from lewel.train.display import Display
from lewel.train.loop import train
from lewel.train.metrics import Metrics
from lewel.train.monitor import CorruptImages
from lewel.train.resume import load_on_all_ranks
from lewel.train.run import Plan, Training

Model = TypeVar("Model", bound=Trainable)


class Prepared(NamedTuple):
    """A model on top of a backbone, and all that its training and a dry run take."""

    model: Trainable
    optimizer: Optimizer
    plan: Plan
    dataset: Samples
    inputs: Callable[[Any], tuple[Any, ...]]
    predict: Callable[[int], None]  # of one validation image
    precise_bn: int = 0  # batches after the training


def plan_training(
    run: EvaluationRun,
    order: Order,
    steps: int,
    learning_rate: Callable[[float], float],
    *,
    channels_last: bool = False,
    saves_epochs: bool = True,
) -> Plan:
    """The plan of a training, with the settings that all evaluations share."""
    network = run.evaluator.network
    return Plan(
        order=order,
        steps=steps,
        learning_rate=learning_rate,
        mean=network.mean,
        std=network.std,
        channels_last=channels_last,
        half=run.evaluator.config.precision in HALF,
        devices=run.place.devices,
        workers=run.extractor.workers,
        log_every=10,
        checkpoint_minutes=10,
        probe_every=0,
        remote=is_remote(run.evaluator.train),
        saves_epochs=saves_epochs,
    )


def train_model(
    run: EvaluationRun,
    model: Model,
    optimizer: Optimizer,
    plan: Plan,
    dataset: Samples,
    inputs: Callable[[Any], tuple[Any, ...]],
) -> Model:
    """Train a model by the loop of pre-training: same devices, progress and resuming.

    Its last checkpoint stays until the result is kept (`Task.compute`).
    """
    fabric, folder = run.fabric, run.evaluator.training_folder()
    folder = folder.with_name(gather_objects([folder.name])[0])  # rank 0's: times of files differ
    if rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    model.to(fabric.device)
    checkpoints = Checkpoints(folder / "checkpoints", 1)
    state = load_on_all_ranks(checkpoints, fabric.device, lambda text: None)
    step = None if state is None else int(state["step"])
    training = Training(
        fabric=fabric,
        method=model,
        optimizer=optimizer,
        plan=plan,
        dataset=dataset,
        inputs=inputs,
        checkpoints=checkpoints,
        metrics=Metrics(folder / "metrics.jsonl", resumed_at=step, writes=rank() == 0),
        corrupt_images=CorruptImages(
            folder / "corrupt_images.jsonl", plan.order.samples, plan.images_per_epoch, allowed=0.0
        ),
        display=Display(plan.steps, step or 0, plan.order.steps_per_epoch, run.console),
        probe=None,
        on_save=lambda training: None,
        config=run.evaluator.settings(),
        data={},
    )
    if state is not None:
        training.restore(state)
        del state  # as large as the model and its optimiser
        show(run.console, f"resumed at step {training.step}")
    try:
        train(training)
    finally:
        training.display.close()
    return model
