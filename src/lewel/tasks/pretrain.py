"""`lewel pretrain`: one run, from its settings and its data to a run folder.

`pretrain` checks the settings and starts the processes; in each, `pretrain_here` locks the folder
and `run_in` restores, assembles and trains.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lewel.config.build import (
    build_dataset,
    build_embed,
    build_fabric,
    build_optimizer,
    build_probe,
)
from lewel.config.configure import configure
from lewel.config.identity import differences, disagreements
from lewel.config.methods import without_unused
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import resolve
from lewel.data.pack.urls import shown
from lewel.data.sources.file_list import Lists
from lewel.data.sources.source import digest
from lewel.errors import Interrupted, UserError, state_of
from lewel.files import refuse_within, set_aside, user_path
from lewel.nn.compile import compile_backbones
from lewel.nn.norm import synchronise
from lewel.ops.ranks import gather_objects, on_rank_0, rank
from lewel.progress import plain_console, show
from lewel.tasks.healing import picture_fault, refuse_lost_checkpoints, settings_before
from lewel.tasks.outcome import Pretrained
from lewel.tasks.pretrain_parts import Parts, introduction, memory_explained, open_configured
from lewel.tasks.run_files import describe, draw_views, restore_files, write_config
from lewel.train.checkpoint import Checkpoints
from lewel.train.devices import HALF, Placement, chosen_precision, placement, set_arithmetic
from lewel.train.display import Display
from lewel.train.fabric import Fabric
from lewel.train.launch import launch
from lewel.train.loggers import Logger, open_loggers
from lewel.train.loop import train
from lewel.train.lost_ranks import WatchedRanks
from lewel.train.metrics import Metrics
from lewel.train.monitor import CorruptImages
from lewel.train.resume import (
    load_on_all_ranks,
    refuse_another_run,
    refuse_different_ranks,
    refuse_other_data,
)
from lewel.train.run import Training, ready_views
from lewel.train.run_folder import RunFolder


def pretrain(config: PretrainConfig, out: Path | None, console: Console) -> Pretrained:
    """Train, or resume where an earlier call stopped."""
    place = placement(config.devices, config.nodes)
    fabric = build_fabric(config, place)
    if place.ranks == 1 or place.starter != "lewel":
        fabric.launch()  # joins the processes that torchrun or srun has started
        with WatchedRanks(config.rank_timeout):
            return _pretrain(config, out, place, fabric, console)
    return _pretrain(config, out, place, fabric, console)


def _pretrain(
    config: PretrainConfig, out: Path | None, place: Placement, fabric: Fabric, console: Console
) -> Pretrained:
    refuse_different_settings(config)
    opened = open_configured(config, out)
    path = out or Path("runs") / f"{opened.unlabelled.name}-{config.method}"
    refuse_within(path, config.data)
    given, config = config, with_precision(config, fabric.device, path)
    if given.precision == "auto" and config.precision in HALF:  # the run's own
        fabric = build_fabric(config, place)
        if place.ranks == 1 or place.starter != "lewel":
            fabric.launch()  # the processes have met already
    if path.is_symlink() and not path.exists():
        raise UserError(f"--out {path} {state_of(path)}: choose a new folder.")
    parts = Parts(config, opened, place, fabric, path)  # mistakes show before a write
    if place.ranks > 1 and place.starter == "lewel":
        del parts
        launch(fabric, config.rank_timeout, pretrain_in_process, config, place, path)
    else:
        pretrain_here(parts, path, console)
    return Pretrained.read(path, config.method)


def refuse_different_settings(config: PretrainConfig) -> None:
    """Ranks on unlike nodes may choose for themselves where there is no recipe."""
    if different := disagreements(gather_objects([config])):
        raise UserError(
            f"The ranks of this run have different settings ({'; '.join(different)}): give these "
            "flags, the same to all."
        )


def rescan(data: str | None, recipe: str | None, out: Path | None) -> None:
    """Forget what is known of a folder's files, so that it is read again."""
    named = configure(None, recipe, {}).data if data is None else data
    Lists.beside(out).forget(str(user_path(named)))


def public(config: PretrainConfig) -> dict[str, Any]:
    """The settings as others may see them: without credentials."""
    return {**config.model_dump(mode="json"), "data": shown(config.data)}


def with_precision(config: PretrainConfig, device: torch.device, path: Path) -> PretrainConfig:
    """The settings with the precision that `auto` stands for: an existing run keeps its own."""

    def choose(beat: Callable[[], None]) -> str:
        before, _ = settings_before(RunFolder(path))
        given = before.precision if before and config.precision == "auto" else config.precision
        return chosen_precision(given, config.accelerator)

    return config.model_copy(update={"precision": on_rank_0(choose, device)})


def pretrain_in_process(
    fabric: Fabric, config: PretrainConfig, place: Placement, path: Path
) -> None:
    """What each process that `launch` starts does."""
    parts = Parts(config, open_configured(config, path), place, fabric, path)
    pretrain_here(parts, path, plain_console())


def pretrain_here(parts: Parts, path: Path, console: Console) -> None:
    """This process's part of a run; only the first one writes and prints."""
    folder = RunFolder(path)
    set_arithmetic(parts.config.precision, fixed_shapes=parts.config.cudnn_benchmark)
    if rank() == 0:
        if not any(folder.checkpoints.glob("step-*.pt")):
            refuse_lost_checkpoints(folder, settings_before(folder)[1])  # before the lock is made
        folder.open()
    else:
        console = Console(quiet=True, force_terminal=False)
    try:
        run_in(folder, parts, console)
    finally:
        folder.close()


def run_in(folder: RunFolder, parts: Parts, console: Console) -> None:
    """One process's part of a run, from wherever it stands to its end."""
    config, data, plan = parts.config, parts.data, parts.plan

    def say(text: str) -> None:
        show(console, text)

    before, fault = settings_before(folder)
    if before is not None:
        refuse_another_run(folder, differences(before, config))
    checkpoints = Checkpoints(folder.checkpoints, config.keep_checkpoints)
    state = load_on_all_ranks(checkpoints, parts.fabric.device, say)
    if state is None:
        refuse_lost_checkpoints(folder, fault)
    else:  # config.yaml may be missing, or the checkpoint be another run's
        stored = without_unused(resolve(state["config"], {}))
        refuse_another_run(folder, differences(stored, config))
        before = before or stored
    if before is not None and config.epochs > before.epochs:
        say(f"{before.epochs} epochs become {config.epochs}: all schedules are stretched.")
    images = digest(data.unlabelled)
    refuse_different_ranks(images)
    content = {"images": len(data.unlabelled), "digest": images}
    if state is not None:
        refuse_other_data(folder, state["data"], content)
    for note in (*data.notes, *introduction(parts)):
        say(note)
    step = None if state is None else int(state["step"])
    if state is not None and state["step"] >= plan.steps:
        say(f"This run is finished: all {plan.steps} steps are done. --epochs N trains for longer.")
        if rank() == 0:
            say(restore_files(folder, parts, state, fault))
        return
    if rank() == 0:
        if fault is not None:
            say(f"config.yaml was damaged: set aside and restored ({fault})")
            set_aside(folder.config)
        write_config(folder, config)
    loggers = open_loggers(
        config.loggers if rank() == 0 else [],
        folder.path,
        folder.path.name,
        public(config),
        step,
        say,
    )
    failed = True
    try:
        with memory_explained():
            run = assemble(folder, parts, checkpoints, content, step, console, loggers)
            if state is not None:
                run.restore(state)
        if state is not None:
            del state  # as large as the method and its optimiser
            say(f"resumed at step {run.step}")
            seen = run.step * plan.order.batch_size
            read = data.unlabelled.read
            if mended := run.corrupt_images.forget_repaired(read, seen, parts.fabric.device):
                say(f"{mended:,} images that were corrupt can be read again")
        if rank() == 0 and (step is None or picture_fault(folder.views)):
            draw_views(run.dataset, plan, folder)
        try:
            train(run)
        finally:
            run.display.close()
        failed = False
    except Interrupted:
        failed = False  # it resumes
        raise
    finally:
        for logger in loggers:
            logger.close(failed=failed)


def assemble(
    folder: RunFolder,
    parts: Parts,
    checkpoints: Checkpoints,
    content: dict[str, Any],
    step: int | None,
    console: Console,
    loggers: list[Logger],
) -> Training:
    """Everything that takes part in the training, on its device, before it is restored."""
    config, data, fabric = parts.config, parts.data, parts.fabric
    plan, method = parts.plan, parts.method
    if config.sync_batch_norm and parts.place.ranks > 1:
        synchronise(method)
    if config.channels_last:
        method.to(memory_format=torch.channels_last)
    method.to(fabric.device)
    if config.compile:
        compile_backbones(method, fabric.device, lambda text: show(console, text))

    def tell(lines: list[dict[str, Any]]) -> None:
        for logger in loggers:
            logger.log(lines)

    return Training(
        fabric=fabric,
        method=method,
        optimizer=build_optimizer(method, config),
        plan=plan,
        dataset=build_dataset(config, data.unlabelled),
        inputs=lambda batch: (ready_views(batch, plan, fabric.device),),
        checkpoints=checkpoints,
        metrics=Metrics(folder.metrics, resumed_at=step, writes=rank() == 0, on_write=tell),
        corrupt_images=CorruptImages(
            folder.corrupt_images, len(data.unlabelled), plan.images_per_epoch
        ),
        display=Display(plan.steps, step or 0, plan.order.steps_per_epoch, console),
        probe=build_probe(config, data, method.student.backbone, fabric.device, parts.place),
        on_save=lambda run: folder.export(
            method.student.backbone.net,
            method.student.head,
            describe(parts, run.metrics.summary(), run.step),
        ),
        config=public(config),
        data=content,
        embed=build_embed(config, data.unlabelled, method, fabric.device, parts.place),
    )
