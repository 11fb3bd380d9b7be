"""The training loop: it uses only the hooks of `Trainable`."""

import time
from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lewel.data.views.loader import make_loader
from lewel.data.workers import workers_explained
from lewel.errors import Interrupted, RunError, StorageError
from lewel.nn.norm import average_statistics
from lewel.nn.trainable import Epoch, Keys, Trainable
from lewel.ops.randomness import seed_of
from lewel.ops.ranks import gather_objects, highest, rank, ranks
from lewel.train.allocator import keep_freed_memory
from lewel.train.clock import Clock
from lewel.train.estimate import is_out_of_memory
from lewel.train.feed import Feed
from lewel.train.interrupt import Interruption
from lewel.train.lost_ranks import (
    note_saved,
    resumption,
    saving,
    watched_reads,
    watched_step,
)
from lewel.train.monitor import CollapseWatch, FiniteWatch
from lewel.train.run import Training
from lewel.train.skipped import step_unless_infinite, undone_where

WAIT_SECONDS = 0.5  # between two exchanges while a rank has no batch
POLL_SECONDS = 5.0  # between two exchanges of signals: heard in 10 s also where steps get slower


def train(run: Training) -> None:
    """Take the remaining steps; save after each epoch, every few minutes and on a stop."""
    try:
        with workers_explained(), Interruption() as interruption:
            _train(run, interruption)
    except RuntimeError as error:
        raise RunError(run.explain_memory()) if is_out_of_memory(error) else error from None


class Saver:
    """Saves a run; all ranks save and stop at the same steps."""

    def __init__(self, run: Training, interruption: Interruption) -> None:
        self.run, self.interruption = run, interruption
        self.finite = FiniteWatch(run.fabric.device)
        self.saved = time.monotonic()
        self.next_poll, self.polled = 0, (run.step, self.saved)
        self.feed: Feed | None = None
        self.clock = Clock()

    def check_corrupt(self) -> None:
        """Save and stop if too many images are corrupt."""
        run = self.run
        try:
            run.corrupt_images.check(run.step * run.plan.order.batch_size, run.fabric.device)
        except RunError:
            if run.unsaved:
                self.write()
            raise

    def save(self) -> None:
        """Called by all ranks; rank 0 writes."""
        self.check_corrupt()
        if self.run.unsaved:
            self.write()

    def write(self) -> None:
        """Write a checkpoint of finite weights, and what belongs to it."""
        run = self.run
        self.finite.check(run.step, run.method)
        run.metrics.flush(sync=True)
        if rank() == 0:
            with saving(run.step):
                run.on_save(run)  # before the checkpoint: a finished run always has its exports
                run.checkpoints.save(run.step, run.state())
                run.metrics.keep_summary()
        run.checkpoints.newest, self.saved = run.step, time.monotonic()

    def poll(self) -> tuple[int, int]:
        """The signal to stop by (or 0) and whether a save is due, the maximum over all ranks.

        Several GPUs exchange this at log steps, where they synchronise anyway, and every few
        seconds.
        """
        plan, device, step = self.run.plan, self.run.fabric.device, self.run.step
        many_gpus = ranks() > 1 and device.type == "cuda"
        if many_gpus and step % plan.log_every and step < self.next_poll:
            return 0, 0
        steps = self.steps_to_next_poll()
        while True:
            late = time.monotonic() - self.saved > 60 * plan.checkpoint_minutes
            ready, failed = self.steps_ready()
            mine = [self.interruption.number or 0, int(late), -min(steps, ready), int(failed)]
            stop, due, fewest, lost = highest(mine, device)
            if stop or lost or fewest:
                break
            assert self.feed is not None
            with self.clock.idle():
                self.feed.wait(WAIT_SECONDS)
        self.next_poll = step - fewest
        if lost and not stop:
            self.stop_for_storage()
        return stop, due

    def steps_ready(self) -> tuple[int, bool]:
        """For how many steps this rank has batches, and whether there will be no more of them."""
        if self.feed is None:
            return 1 << 30, False
        ready = self.feed.ready // self.run.plan.order.accumulate
        return ready, ready == 0 and self.feed.error is not None

    def stop_for_storage(self) -> None:
        """Save and stop: a rank has waited for its batch for too long, or has failed to read it."""
        assert self.feed is not None
        error = self.feed.error
        if error is not None and not isinstance(error, StorageError):
            raise error
        reasons = gather_objects([] if error is None else [str(error)])
        if self.run.unsaved:
            self.write()
        raise StorageError(f"{reasons[0]} {resumption(self.run.step)}")

    def steps_to_next_poll(self) -> int:
        """How many steps take a few seconds, by those since the last poll; 1 at first."""
        (step, then), self.polled = self.polled, (self.run.step, time.monotonic())
        each = (self.polled[1] - then) / max(1, self.run.step - step)
        return max(1, int(POLL_SECONDS / max(each, 1e-3))) if self.run.step > step else 1


def _train(run: Training, interruption: Interruption) -> None:
    plan, fabric, order = run.plan, run.fabric, run.plan.order
    keep_freed_memory()  # inherited by the data workers
    module = fabric.setup_module(run.method)
    optimizer = fabric.setup_optimizers(run.optimizer)
    saver = Saver(run, interruption)
    if run.resumed:
        note_saved(run.step)
    else:
        run.metrics.add({"step": 0, "epoch": 0.0, **run_probe(run)}, {})
        saver.save()
    pin = fabric.device.type == "cuda"
    loader = make_loader(run.dataset, order, run.step, plan.steps, plan.workers, pin)
    saver.feed = Feed(loader, 2 * order.accumulate) if plan.remote else None
    try:
        _take_steps(run, module, optimizer, saver, iter(saver.feed or loader))
    except StorageError:  # of the k-NN probe: `poll` has saved already
        if ranks() == 1 and run.unsaved:
            saver.write()
        raise
    finally:
        if saver.feed is not None:
            saver.feed.close()


def _take_steps(
    run: Training, module: Any, optimizer: Any, saver: Saver, loaded: Iterator[Any]
) -> None:
    plan, order = run.plan, run.plan.order
    collapse, clock = CollapseWatch(run.display.report), Clock()
    saver.clock = clock
    batches = clock.waiting(watched_reads(loaded))
    module.train()
    run.display.begin()
    while run.step < plan.steps:
        stop, due = saver.poll()
        if (stop or due) and run.unsaved:
            with clock.paused():
                saver.save()
        if stop:
            raise Interrupted(stop, run.step)
        if run.step % order.steps_per_epoch == 0:
            with clock.paused():
                begin_epoch(run)
        with watched_step(run.step):
            numbers, on_device = take_step(run, module, optimizer, batches)
        saver.finite.update(on_device["loss"])
        run.step += 1
        clock.images += order.batch_size
        epoch = round(run.step / order.steps_per_epoch, 4)
        run.metrics.add({"step": run.step, "epoch": epoch, **numbers}, on_device)
        reports = run.step % plan.log_every == 0 or run.step == plan.steps
        if ranks() == 1 or reports:
            saver.check_corrupt()
        if plan.probes_after(run.step):
            with clock.paused():
                run.metrics.annotate(run_probe(run))
        if reports:
            saver.finite.check(run.step)
            run.metrics.annotate(clock.lap())
            lines = run.metrics.flush()
            collapse.check(lines, run.step / plan.steps)
            run.display.show(lines[-1])
        if plan.saves_after(run.step):
            with clock.paused():
                saver.save()


def begin_epoch(run: Training) -> None:
    """Call the model's hook, with random numbers that all ranks and a resumed run draw alike."""
    order, hook = run.plan.order, run.method.before_epoch
    if not signature(hook).parameters:  # version 0.1's hook took nothing
        hook()  # type: ignore[call-arg]
    elif type(run.method).before_epoch is not Trainable.before_epoch:
        torch.manual_seed(seed_of(order.seed, run.step))
        hook(Epoch(run.step // order.steps_per_epoch, run.embed_all, run.display.work))


def take_step(
    run: Training, module: Any, optimizer: Any, batches: Iterator[Any]
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """One optimiser step over all micro-batches -> numbers to log, and scalars on the device."""
    plan, fabric, order = run.plan, run.fabric, run.plan.order
    progress = run.step / plan.steps
    rate = plan.learning_rate(progress)
    for group in run.optimizer.param_groups:
        own = rate if group.get("anneal", True) else plan.held_rate(progress)
        group["lr"] = own * group.get("lr_scale", 1.0)
    totals: dict[str, Tensor] = {}
    keys: list[Keys] = []
    for micro in range(order.accumulate):
        batch = next(batches)
        run.corrupt_images.add(batch.corrupt)
        inputs = run.inputs(batch)
        torch.manual_seed(seed_of(order.seed, run.step, order.rank, micro))
        with fabric.no_backward_sync(module, enabled=micro < order.accumulate - 1):
            out = module(*inputs)
            fabric.backward(out.loss / order.accumulate)
        for name, value in {"loss": out.loss.detach(), **out.logs}.items():
            totals[name] = totals.get(name, 0) + value / order.accumulate
        if out.keys is not None:
            keys.append(out.keys)
    freeze(run.optimizer, run.step)
    skipped = step_unless_infinite(fabric, optimizer)
    optimizer.zero_grad(set_to_none=True)
    average_statistics(run.method)
    with undone_where(skipped, run.method):
        numbers = run.method.after_step(progress, joined(keys) if keys else None)
    return {"lr": rate} | numbers, totals


def joined(parts: list[Keys]) -> Keys:
    """The keys of all micro-batches."""
    if isinstance(parts[0], Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    return tuple(torch.cat(rows) for rows in zip(*parts, strict=True))


def freeze(optimizer: Optimizer, step: int) -> None:
    """Drop the gradients of parameters that are not trained yet: no optimiser touches these."""
    for group in optimizer.param_groups:
        if step < group.get("frozen_steps", 0):
            for parameter in group["params"]:
                parameter.grad = None


def run_probe(run: Training) -> dict[str, float]:
    """k-NN accuracy of the current backbone; empty where there are no labels."""
    if run.probe is None:
        return {}
    was_training = run.method.training
    run.method.eval()
    numbers = run.probe(run.display.status)
    run.method.train(was_training)
    text = ", ".join(f"{name} {value:.1%}" for name, value in numbers.items())
    run.display.report(f"after step {run.step}: {text}")
    return numbers
