"""`lewel segment|detect --dry-run`: what an evaluation would be and how long it would take."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from lewel.config.evaluate import DenseConfig
from lewel.data.views.loader import make_loader
from lewel.tasks.dry_run import duration
from lewel.tasks.evaluation import EvaluationRun, Task
from lewel.tasks.evaluator import Evaluator
from lewel.tasks.training import Prepared
from lewel.train.card import count
from lewel.train.devices import open_fabric, placement

STEPS, IMAGES = 3, 3  # timed; the first of each is a warm-up
LONG = 20.0  # seconds; what takes longer is timed once


def describe_dense(
    task: Task,
    prepare: Callable[[EvaluationRun], Prepared],
    what: str,
    config: DenseConfig,
    out: Path | None,
) -> dict[str, Any]:
    """Images, steps, parameters and time of an evaluation; nothing is written."""
    first = config.model_copy(update={"lr": f"{config.rates[0]:g}"})
    evaluator = Evaluator(what, first, out, task.opens)
    place = placement(config.devices, config.nodes)
    sync = bool(getattr(config, "sync_batch_norm", False))
    fabric = open_fabric(place, config.accelerator, evaluator.config.precision, sync)
    run = task.open(fabric, evaluator, place, Console(quiet=True))
    prepared = prepare(run)
    plan, images = prepared.plan, len(evaluator.val)
    step = step_seconds(run, prepared)
    prepared.model.eval()
    image = median_seconds(lambda n: prepared.predict(n % images), IMAGES)
    # PreciseBN is forward passes, about a third of a step.
    total = step * (plan.steps + prepared.precise_bn / 3) + image * images / place.ranks
    total *= len(config.rates)
    about = f"about {duration(total)} on {place.ranks} x {fabric.device.type}"
    return {
        "training images": len(evaluator.train),
        "validation images": images,
        "steps": plan.steps,
        "learning rates": len(config.rates),
        "parameters": count(prepared.model),
        "time": f"{about}: {step:.2g} s a step, {image:.2g} s a validation image"
        + (f", {len(config.rates)} trainings" if len(config.rates) > 1 else ""),
        **({"notes": " ".join(dict.fromkeys(evaluator.notes))} if evaluator.notes else {}),
    }


def step_seconds(run: EvaluationRun, prepared: Prepared) -> float:
    """Seconds of a training step with its batch, read in this process."""
    plan, model = prepared.plan, prepared.model.to(run.fabric.device).train()
    batches = iter(make_loader(prepared.dataset, plan.order, 0, plan.steps, 0, pin=False))

    def step(number: int) -> None:
        with run.fabric.autocast():
            loss = model(*prepared.inputs(next(batches))).loss
        loss.backward()
        float(loss.detach())  # waits for the device
        prepared.optimizer.zero_grad(set_to_none=True)

    return median_seconds(step, min(STEPS, plan.steps))


def median_seconds(work: Callable[[int], None], times: int) -> float:
    """The median over calls without the first, which warms up; a long one is called once."""
    seconds: list[float] = []
    while len(seconds) < times and max(seconds, default=0.0) < LONG:
        begun = time.monotonic()
        work(len(seconds))
        seconds.append(time.monotonic() - begun)
    return median(seconds[1:] or seconds)
