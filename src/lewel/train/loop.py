"""The training loop: it knows a method's three hooks and nothing else about it."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lewel.data.loader import make_loader, reader_died
from lewel.errors import Interrupted, RunError
from lewel.nn.norm import average_statistics
from lewel.ops.randomness import seed_of
from lewel.ops.ranks import highest, rank, ranks
from lewel.train.allocator import keep_freed_memory
from lewel.train.clock import Clock
from lewel.train.engine import Fabric
from lewel.train.estimate import is_out_of_memory
from lewel.train.interrupt import Interruption
from lewel.train.monitor import CollapseWatch, FiniteWatch
from lewel.train.run import Training


def train(run: Training) -> None:
    """Take the steps that remain; save after each epoch, every few minutes and at a stop."""
    try:
        with Interruption() as interruption:
            _train(run, interruption)
    except RuntimeError as error:
        if not reader_died(error):
            raise RunError(run.explain_memory()) if is_out_of_memory(error) else error from None
        raise RunError(
            f"A process that reads images died ({str(error).splitlines()[0]}): perhaps memory ran "
            "out. Run the same command again to go on, with fewer --workers."
        ) from error


class Keeper:
    """Saves a run, and agrees with the other ranks on when to save and when to stop."""

    def __init__(self, run: Training, interruption: Interruption) -> None:
        self.run, self.interruption = run, interruption
        self.finite = FiniteWatch(run.fabric.device)
        self.saved = time.monotonic()

    def judge_images(self) -> None:
        """Stop where too many images can't be read."""
        run = self.run
        run.bad_images.judge(run.step * run.plan.order.batch_size, run.fabric.device)

    def save(self) -> None:
        """All ranks call this; the first one writes."""
        run = self.run
        self.finite.check(run.step, run.method)
        self.judge_images()
        run.metrics.flush(sync=True)
        if rank() == 0:
            run.on_save(run)  # before the checkpoint: a finished run always has its exports
            run.checkpoints.save(run.step, run.state())
        run.checkpoints.newest, self.saved = run.step, time.monotonic()

    def wishes(self) -> tuple[int, int]:
        """A signal to stop by (or 0) and whether a save is due: what any rank says, all do.

        Many GPUs ask each other at log steps only, when they wait for each other anyway.
        """
        plan, device = self.run.plan, self.run.fabric.device
        if ranks() > 1 and device.type == "cuda" and self.run.step % plan.log_every:
            return 0, 0
        late = time.monotonic() - self.saved > 60 * plan.checkpoint_minutes
        stop, due = highest([self.interruption.number or 0, int(late)], device)
        return stop, due


def _train(run: Training, interruption: Interruption) -> None:
    plan, fabric, order = run.plan, run.fabric, run.plan.order
    keep_freed_memory()  # the processes that read inherit it
    module = fabric.setup_module(run.method)
    optimizer = fabric.setup_optimizers(run.optimizer)
    keeper, collapse = Keeper(run, interruption), CollapseWatch(run.display.say)
    if not run.resumed:
        run.metrics.add({"step": 0, "epoch": 0.0, **look_at(run)}, {})
        keeper.save()
    pin = fabric.device.type == "cuda"
    loader = make_loader(run.dataset, order, run.step, plan.steps, plan.workers, pin)
    clock = Clock()
    batches = clock.waiting(iter(loader))
    module.train()
    run.display.begin()
    while run.step < plan.steps:
        stop, due = keeper.wishes()
        if (stop or due) and run.unsaved:
            with clock.paused():
                keeper.save()
        if stop:
            raise Interrupted(stop, run.step)
        if run.step % order.steps_per_epoch == 0:
            run.method.before_epoch()
        numbers, on_device = take_step(run, module, optimizer, batches)
        keeper.finite.look(on_device["loss"])
        run.step += 1
        clock.images += order.batch_size
        epoch = round(run.step / order.steps_per_epoch, 4)
        run.metrics.add({"step": run.step, "epoch": epoch, **numbers}, on_device)
        reports = run.step % plan.log_every == 0 or run.step == plan.steps
        if ranks() == 1 or reports:
            keeper.judge_images()
        if plan.probes_after(run.step):
            with clock.paused():
                run.metrics.annotate(look_at(run))
        if reports:
            keeper.finite.check(run.step)
            run.metrics.annotate(clock.lap())
            lines = run.metrics.flush()
            collapse.look(lines, run.step / plan.steps)
            run.display.show(lines[-1])
        if plan.saves_after(run.step):
            with clock.paused():
                keeper.save()


def take_step(
    run: Training, module: Any, optimizer: Any, batches: Iterator[Any]
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """One optimiser step over all its micro-batches -> plain numbers, and scalars on the device."""
    plan, fabric, order = run.plan, run.fabric, run.plan.order
    progress = run.step / plan.steps
    rate = plan.learning_rate(progress)
    for group in run.optimizer.param_groups:
        group["lr"] = rate * group.get("share", 1.0)
    totals: dict[str, Tensor] = {}
    keys = []
    for micro in range(order.accumulate):
        batch = next(batches)
        run.bad_images.look(batch.bad)
        inputs = run.inputs(batch)
        torch.manual_seed(seed_of(order.seed, run.step, order.rank, micro))
        with fabric.no_backward_sync(module, enabled=micro < order.accumulate - 1):
            out = module(*inputs)
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
