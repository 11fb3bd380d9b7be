"""`lewel pretrain`: one run, from its settings and its data to a run folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torchvision.utils import save_image

from lewel.config.build import (
    build_dataset,
    build_embed,
    build_fabric,
    build_method,
    build_optimizer,
    build_plan,
    build_probe,
    load_initial,
    peak_rate,
)
from lewel.config.configure import configure
from lewel.config.methods import as_recipe, without_unused
from lewel.config.pretrain import PretrainConfig, differences, resolve, write_yaml
from lewel.config.settings import storage_of
from lewel.data.sources.check import refuse_identical
from lewel.data.sources.file_list import Lists
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Data, digest
from lewel.data.views.loader import Samples, finish_views
from lewel.errors import Interrupted, RunError, UserError, state_of
from lewel.files import refuse_within, set_aside, user_path, write_atomically
from lewel.nn.compile import compile_backbones
from lewel.nn.norm import synchronise
from lewel.ops.ranks import on_rank_0, rank
from lewel.progress import plain_console, show
from lewel.tasks.healing import heal, picture_fault, refuse_lost_checkpoints, settings_before
from lewel.tasks.outcome import Pretrained
from lewel.train.card import card, count
from lewel.train.checkpoint import Checkpoints, State
from lewel.train.devices import Placement, chosen_precision, placement, set_arithmetic
from lewel.train.display import Display
from lewel.train.estimate import is_out_of_memory
from lewel.train.fabric import Fabric
from lewel.train.launch import launch
from lewel.train.loggers import Logger, open_loggers
from lewel.train.loop import train
from lewel.train.lost_ranks import WatchedRanks
from lewel.train.metrics import Metrics, MetricsReader
from lewel.train.monitor import CorruptImages
from lewel.train.resume import (
    load_on_all_ranks,
    refuse_another_run,
    refuse_different_ranks,
    refuse_other_data,
)
from lewel.train.run import Plan, Training, ready_views
from lewel.train.run_folder import RunFolder
from lewel.train.summary import Summary

CPU = torch.device("cpu")


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
    opened = open_configured(config, out)
    path = out or Path("runs") / f"{opened.unlabelled.name}-{config.method}"
    refuse_within(path, config.data)
    config = with_precision(config, fabric.device, path)
    if path.is_symlink() and not path.exists():
        raise UserError(f"--out {path} {state_of(path)}: choose a new folder.")
    parts = Parts(config, opened, place, fabric, path)  # mistakes show before a write
    if place.ranks > 1 and place.starter == "lewel":
        del parts
        launch(fabric, config.rank_timeout, pretrain_in_process, config, place, path)
    else:
        pretrain_here(parts, path, console)
    return Pretrained.read(path, config.method)


def with_precision(config: PretrainConfig, device: torch.device, path: Path) -> PretrainConfig:
    """The settings with the precision that `auto` stands for: an existing run keeps its own."""

    def choose(beat: Callable[[], None]) -> str:
        before, _ = settings_before(RunFolder(path))
        given = before.precision if before and config.precision == "auto" else config.precision
        return chosen_precision(given, config.accelerator)

    return config.model_copy(update={"precision": on_rank_0(choose, device)})


class Parts:
    """What a configuration and its data give before a run folder is touched."""

    def __init__(
        self,
        config: PretrainConfig,
        data: Data,
        place: Placement,
        fabric: Fabric,
        path: Path | None,
    ) -> None:
        self.config, self.data, self.place, self.fabric = config, data, place, fabric
        with memory_explained():
            self.plan = build_plan(config, data.unlabelled, fabric.device, place)
            self.method = build_method(config, len(data.unlabelled), place.ranks)
        resumes = path is not None and any(RunFolder(path).checkpoints.glob("step-*.pt"))
        if config.init is not None and not resumes:
            load_initial(self.method, config.init)


@contextmanager
def memory_explained() -> Iterator[None]:
    """A network that is too large to be made is a mistake in its sizes."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(
            "Memory ran out before the first step: choose a smaller --backbone, --width, "
            "--head.hidden or --contrast.queue."
        ) from None


def rescan(data: str | None, recipe: str | None, out: Path | None) -> None:
    """Forget what is known of a folder's files, so that it is read again."""
    named = configure(None, recipe, {}).data if data is None else data
    Lists.beside(out).forget(str(user_path(named)))


def open_configured(config: PretrainConfig, path: Path | None) -> Data:
    """The data that a configuration names, for a run in a folder."""
    data = open_data(
        config.data,
        image_size=config.image_size,
        limit=config.limit,
        classes=config.classes,
        storage=storage_of(config),
        lists=Lists.beside(path),
    )
    refuse_identical(data.unlabelled, config.data)
    return data


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
    elif before is None:  # config.yaml is missing or damaged; the checkpoint has the settings too
        before = without_unused(resolve(state["config"], {}))
        refuse_another_run(folder, differences(before, config))
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
        config.model_dump(mode="json"),
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


def restore_files(folder: RunFolder, parts: Parts, state: State, fault: str | None) -> str:
    """Make the missing and damaged files of a finished run again; what was done, as text."""
    step, images = int(state["step"]), parts.data.unlabelled
    parts.method.load_state_dict(state["method"])
    return heal(
        folder,
        parts.method.student,
        step,
        fault,
        describe=lambda: describe(parts, MetricsReader(folder.metrics).update(), step),
        draw=lambda: draw_views(build_dataset(parts.config, images), parts.plan, folder),
        configure=lambda: write_config(folder, parts.config),
    )


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
        config=config.model_dump(mode="json"),
        data=content,
        embed=build_embed(config, data.unlabelled, method, fabric.device, parts.place),
    )


def describe(parts: Parts, metrics: Summary, step: int) -> dict[str, Any]:
    """The content of card.json after a step."""
    config = parts.config
    return card(
        step,
        parts.plan,
        parts.fabric.device,
        parts.data,
        metrics,
        parts.method.student.backbone,
        method=config.method,
        name=config.backbone,
        stem=config.stem,
        width=config.width,
        image_size=config.image_size,
        precision=config.precision,
        cudnn_benchmark=config.cudnn_benchmark,
    )


def introduction(parts: Parts) -> list[str]:
    """What is about to happen, in a few lines."""
    config, data, plan = parts.config, parts.data, parts.plan
    method, device = parts.method, parts.fabric.device
    many = parts.place.ranks
    where = f"{many} x {device.type}" if many > 1 else device.type
    lines = [
        f"{config.method} with {config.backbone} ({count(method.student.backbone) / 1e6:.1f} M "
        f"parameters) on {len(data.unlabelled):,} images of {config.image_size} px, "
        f"epochs: {config.epochs} = {plan.steps:,} steps of {config.batch_size}, on {where}"
    ]
    if config.batch_size != config.optim.lr_batch_size:
        lines.append(
            f"The learning rate {config.optim.lr:g} is for a batch of "
            f"{config.optim.lr_batch_size}: scaled to {peak_rate(config):g}."
        )
    return [*lines, *warnings(parts)]


def warnings(parts: Parts) -> list[str]:
    """What a user may not expect of these settings, one sentence each."""
    config, device, lines = parts.config, parts.fabric.device, list[str]()
    if config.optim.warmup_epochs >= config.epochs:
        lines.append(
            f"The warm-up of {config.optim.warmup_epochs:g} epochs takes the whole run: "
            "the learning rate only rises. Lower --optim.warmup-epochs."
        )
    if device.type == "cpu" and config.backbone == "resnet50" and config.image_size >= 128:
        lines.append(
            "No GPU is used: a ResNet-50 of this size takes weeks on a CPU. "
            "`lewel recipes` lists small ones."
        )
    if parts.method.about.in_batch and config.accumulate > 1:
        lines.append(
            f"The loss of {config.method} compares the images of a micro-batch: with --accumulate "
            f"{config.accumulate} these are {config.batch_size // config.accumulate:,}, not "
            f"{config.batch_size:,}."
        )
    return lines + parts.method.remarks(config.epochs, parts.plan.steps)


def write_config(folder: RunFolder, config: PretrainConfig) -> None:
    """Write the settings of a run."""
    write_atomically(folder.config, lambda aside: write_yaml(as_recipe(config), aside))


def draw_views(dataset: Samples, plan: Plan, folder: RunFolder) -> None:
    """A picture of what the network will see: eight images, one column each, one row a view."""
    keys = next(plan.order.keys(0, 1))[:8]
    views = finish_views(dataset.__getitems__(keys), CPU, (0.0,) * 3, (1.0,) * 3)
    side = max(view.shape[-1] for view in views)
    margins = [side - view.shape[-1] for view in views]  # of small crops, filled with black
    picture = torch.cat([F.pad(v, (0, m, 0, m)) for v, m in zip(views, margins, strict=True)])
    write_atomically(
        folder.views, lambda aside: save_image(picture, aside, nrow=len(keys), format="PNG")
    )
