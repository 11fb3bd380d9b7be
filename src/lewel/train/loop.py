"""The training loop: it knows a method's three hooks and nothing else about it."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import AdamW, Optimizer

from lewel.data.loader import Batch, Order, TwoViews, finish_views, make_loader
from lewel.errors import Interrupted, RunError
from lewel.methods.base import Method
from lewel.nn.norm import average_statistics
from lewel.ops.randomness import seed_of
from lewel.ops.ranks import highest, rank, ranks
from lewel.train.checkpoint import Checkpoints, State
from lewel.train.display import Display
from lewel.train.estimate import is_out_of_memory, out_of_memory_sentence
from lewel.train.interrupt import Interruption
from lewel.train.metrics import Metrics
from lewel.train.monitor import BadImages, CollapseWatch, FiniteWatch

Report = Callable[[str], None]
Probe = Callable[[Report], dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """What decides the course of a training run."""

    order: Order
    epochs: int
    learning_rate: Callable[[float], float]  # of progress in [0, 1]
    mean: Sequence[float]
    std: Sequence[float]
    channels_last: bool
    half: bool  # 16-bit arithmetic
    workers: int
    log_every: int
    checkpoint_minutes: float
    probe_every: float  # epochs; 0 for never

    @property
    def steps(self) -> int:
        return self.epochs * self.order.steps_per_epoch

    @property
    def images_per_epoch(self) -> int:
        return self.order.steps_per_epoch * self.order.batch_size

    def probes_after(self, step: int) -> bool:
        """Whether the k-NN probe runs after this many steps: before, every so often, at the end."""
        if not self.probe_every:
            return False
        interval = max(1, round(self.probe_every * self.order.steps_per_epoch))
        return step % interval == 0 or step == self.steps


@dataclass
class Training:
    """Everything that takes part in a run; `train` drives it from the state it is in."""

    fabric: Fabric
    method: Method
    optimizer: Optimizer
    plan: Plan
    dataset: TwoViews
    checkpoints: Checkpoints
    metrics: Metrics
    bad_images: BadImages
    display: Display
    probe: Probe | None
    on_save: Callable[["Training"], None]  # leaves the exports of this step in the run folder
    config: dict[str, Any]  # as plain values, for the checkpoint
    data: dict[str, Any]  # what was trained on, for the checkpoint
    step: int = 0
    resumed: bool = False

    def explain_memory(self) -> str:
        """Why memory ran out, and what would fit."""
        plan, order, device = self.plan, self.plan.order, self.fabric.device
        if device.type == "cuda":
            torch.cuda.empty_cache()
            memory = torch.cuda.get_device_properties(device).total_memory
        else:
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // order.ranks
        return out_of_memory_sentence(
            self.method,
            optimizer_slots=optimizer_slots(self.optimizer),
            image_size=self.dataset.size,
            batch_size=order.batch_size,
            accumulate=order.accumulate,
            device=str(device),
            device_memory=memory,
            half=plan.half,
            ranks=order.ranks,
        )

    @property
    def unsaved(self) -> bool:
        """Whether steps were taken since the newest checkpoint."""
        return self.checkpoints.newest != self.step

    def state(self) -> State:
        """All that a later process needs to go on exactly here."""
        return {
            "step": self.step,
            "config": self.config,
            "data": self.data,
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric._precision.state_dict(),
        }

    def restore(self, state: State) -> None:
        self.step, self.resumed = state["step"], True
        self.method.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.fabric._precision.load_state_dict(state["precision"])


class Clock:
    """Images a second, and the share of the time spent waiting for data, since the last lap."""

    def __init__(self) -> None:
        self.started, self.waited, self.images = time.monotonic(), 0.0, 0

    def waiting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            before = time.monotonic()
            batch = next(batches, None)
            self.waited += time.monotonic() - before
            if batch is None:
                return
            yield batch

    def lap(self) -> dict[str, float]:
        took = max(time.monotonic() - self.started, 1e-9)
        numbers = {
            "images_per_s": round(self.images / took, 2),
            "data_wait": round(self.waited / took, 4),
        }
        self.__init__()  # type: ignore[misc]
        return numbers

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is no training: probes and saves."""
        before = time.monotonic()
        yield
        self.started += time.monotonic() - before


def train(run: Training) -> None:
    """Take the steps that remain; save after each epoch, every few minutes and at a stop."""
    try:
        with Interruption() as interruption:
            _train(run, interruption)
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise RunError(run.explain_memory()) if is_out_of_memory(error) else error from None
        raise RunError(
            f"A process that reads images died ({str(error).splitlines()[0]}): perhaps memory ran "
            "out. Run the same command again to go on, with fewer --workers."
        ) from error


def _train(run: Training, interruption: Interruption) -> None:
    plan, fabric, order = run.plan, run.fabric, run.plan.order
    module = fabric.setup_module(run.method)
    optimizer = fabric.setup_optimizers(run.optimizer)
    finite, collapse = FiniteWatch(fabric.device), CollapseWatch(run.display.say)
    saved = time.monotonic()

    def judge_images() -> None:
        run.bad_images.judge(run.step * order.batch_size, fabric.device)

    def save() -> None:
        nonlocal saved
        finite.check(run.step, run.method)
        judge_images()
        run.metrics.flush(sync=True)
        if rank() == 0:
            run.on_save(run)  # before the checkpoint: a finished run always has its exports
            run.checkpoints.save(run.step, run.state())
        run.checkpoints.newest, saved = run.step, time.monotonic()

    def wishes() -> tuple[int, int]:
        """A signal to stop by (or 0) and whether a save is due: what any rank says, all do.

        Many GPUs ask each other at log steps only, when they wait for each other anyway.
        """
        if ranks() > 1 and fabric.device.type == "cuda" and run.step % plan.log_every:
            return 0, 0
        late = time.monotonic() - saved > 60 * plan.checkpoint_minutes
        stop, due = highest([interruption.number or 0, int(late)], fabric.device)
        return stop, due

    if not run.resumed:
        run.metrics.add({"step": 0, "epoch": 0.0, **look_at(run)}, {})
        save()
    pin = fabric.device.type == "cuda"
    loader = make_loader(run.dataset, order, run.step, plan.steps, plan.workers, pin)
    clock = Clock()
    batches = clock.waiting(iter(loader))
    module.train()
    run.display.begin()
    while run.step < plan.steps:
        stop, due = wishes()
        if (stop or due) and run.unsaved:
            with clock.paused():
                save()
        if stop:
            raise Interrupted(stop, run.step)
        if run.step % order.steps_per_epoch == 0:
            run.method.before_epoch()
        numbers, on_device = take_step(run, module, optimizer, batches)
        finite.look(on_device["loss"])
        run.step += 1
        if ranks() == 1 or run.step % plan.log_every == 0:
            judge_images()
        clock.images += order.batch_size
        epoch = round(run.step / order.steps_per_epoch, 4)
        run.metrics.add({"step": run.step, "epoch": epoch, **numbers}, on_device)
        if plan.probes_after(run.step):
            with clock.paused():
                run.metrics.annotate(look_at(run))
        if run.step % plan.log_every == 0 or run.step == plan.steps:
            finite.check(run.step)
            run.metrics.annotate(clock.lap())
            lines = run.metrics.flush()
            collapse.look(lines, run.step / plan.steps)
            run.display.show(lines[-1])
        if run.step % order.steps_per_epoch == 0:
            with clock.paused():
                save()


def take_step(
    run: Training, module: Any, optimizer: Any, batches: Iterator[Batch]
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """One optimiser step over all its micro-batches -> plain numbers, and scalars on the device."""
    plan, fabric, order = run.plan, run.fabric, run.plan.order
    progress = run.step / plan.steps
    rate = plan.learning_rate(progress)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    totals: dict[str, Tensor] = {}
    keys = []
    for micro in range(order.accumulate):
        batch = next(batches)
        run.bad_images.look(batch.bad)
        views = finish_views(batch, fabric.device, plan.mean, plan.std)
        if plan.channels_last:
            views = [view.contiguous(memory_format=torch.channels_last) for view in views]
        torch.manual_seed(seed_of(order.seed, run.step, order.rank, micro))
        with fabric.no_backward_sync(module, enabled=micro < order.accumulate - 1):
            out = module(views)
            fabric.backward(out.loss / order.accumulate)
        for name, value in {"loss": out.loss.detach(), **out.logs}.items():
            totals[name] = totals.get(name, 0) + value / order.accumulate
        if out.keys is not None:
            keys.append(out.keys)
    stepped = step_unless_skipped(fabric, optimizer)
    optimizer.zero_grad(set_to_none=True)
    numbers = {"lr": rate}
    average_statistics(run.method)
    if stepped:
        numbers |= run.method.after_step(progress, torch.cat(keys) if keys else None)
    return numbers, totals


def optimizer_slots(optimizer: Optimizer) -> int:
    """How many numbers an optimiser keeps for each weight."""
    return 2 if isinstance(optimizer, AdamW) else 1


def step_unless_skipped(fabric: Fabric, optimizer: Any) -> bool:
    """Step the optimiser; False where the gradient scaler of 16-bit training left the step out."""
    scaler = getattr(fabric._precision, "scaler", None)
    before = scaler.get_scale() if scaler is not None else 0.0
    optimizer.step()
    return scaler is None or scaler.get_scale() >= before


def look_at(run: Training) -> dict[str, float]:
    """What the probe says of the backbone as it is now; nothing where there are no labels."""
    if run.probe is None:
        return {}
    was_training = run.method.training
    run.method.eval()
    numbers = run.probe(run.display.status)
    run.method.train(was_training)
    said = ", ".join(f"{name} {value:.1%}" for name, value in numbers.items())
    run.display.say(f"after step {run.step}: {said}")
    return numbers
