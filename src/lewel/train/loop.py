"""The training loop: it uses only the hooks of `Trainable`."""

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
from lewel.ops.ranks import ranks
from lewel.train.allocator import keep_freed_memory
from lewel.train.clock import Clock
from lewel.train.estimate import is_out_of_memory
from lewel.train.feed import Feed
from lewel.train.interrupt import Interruption
from lewel.train.lost_ranks import note_saved, watched_reads, watched_step
from lewel.train.monitor import CollapseWatch
from lewel.train.run import Training
from lewel.train.saver import Saver
from lewel.train.skipped import step_unless_infinite, undone_where


def train(run: Training) -> None:
    """Take the remaining steps; save after each epoch, every few minutes and on a stop."""
    try:
        with workers_explained(), Interruption() as interruption:
            _train(run, interruption)
    except RuntimeError as error:
        raise RunError(run.explain_memory()) if is_out_of_memory(error) else error from None


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
            with watched_step(run.step - 1, taken=False):
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
