"""One pre-training run, from a configuration and its data to a run folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torchvision.utils import save_image

from lewel.build import (
    begin_with,
    build_dataset,
    build_method,
    build_optimizer,
    build_plan,
    build_probe,
    peak_rate,
)
from lewel.card import card, count, summary
from lewel.config import PretrainConfig, differences, read_yaml, resolve, write_yaml
from lewel.data.loader import Samples, finish_views
from lewel.data.sources import Data, digest, open_data
from lewel.errors import Interrupted, RunError, UserError
from lewel.files import write_atomically
from lewel.nn.compiling import compile_backbones
from lewel.nn.norm import synchronise
from lewel.ops.ranks import from_first, gather_things, rank
from lewel.train.checkpoint import Checkpoints, State
from lewel.train.devices import Placement
from lewel.train.display import Display
from lewel.train.engine import Fabric
from lewel.train.estimate import is_out_of_memory
from lewel.train.folder import RunFolder
from lewel.train.loggers import Logger, open_loggers
from lewel.train.loop import train
from lewel.train.metrics import Metrics
from lewel.train.monitor import BadImages
from lewel.train.run import Plan, Training, ready_views

CPU = torch.device("cpu")


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
        goes_on = path is not None and any(RunFolder(path).checkpoints.glob("step-*.pt"))
        if config.init is not None and not goes_on:
            begin_with(self.method, config.init)


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


def open_configured(config: PretrainConfig) -> Data:
    """The data that a configuration names."""
    return open_data(
        config.data, image_size=config.image_size, limit=config.limit, classes=config.classes
    )


def pretrain_in_process(
    fabric: Fabric, config: PretrainConfig, place: Placement, path: Path
) -> None:
    """What each process that `launch` starts does."""
    parts = Parts(config, open_configured(config), place, fabric, path)
    pretrain_here(parts, path, Console())


def pretrain_here(parts: Parts, path: Path, console: Console) -> None:
    """This process's share of a run; only the first one writes and speaks."""
    folder = RunFolder(path)
    if rank() == 0:
        folder.open()
    else:
        console = Console(quiet=True, force_terminal=False)
    try:
        run_in(folder, parts, console)
    finally:
        folder.close()


def run_in(folder: RunFolder, parts: Parts, console: Console) -> None:
    """One process's share of a run, from wherever it stands to its end."""
    config, data, plan = parts.config, parts.data, parts.plan

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if folder.config.exists():
        before = resolve(read_yaml(folder.config), {})
        refuse_another_run(folder, before, config)
        if config.epochs > before.epochs:
            say(f"{before.epochs} epochs become {config.epochs}: the schedules are stretched.")
    checkpoints = Checkpoints(folder.checkpoints, config.keep_checkpoints)
    state = load_on_all_ranks(checkpoints, folder, parts.fabric.device, say)
    images = digest(data.unlabelled)
    refuse_different_ranks(images)
    content = {"images": len(data.unlabelled), "digest": images}
    if state is not None:
        refuse_other_data(folder, state["data"], content)
    for note in (*data.notes, *introduction(parts)):
        say(note)
    if state is not None and state["step"] >= plan.steps:
        say(f"This run is finished: all {plan.steps} steps are done. --epochs N trains for longer.")
        if rank() == 0:
            say(summary(folder, config))
        return
    if rank() == 0:
        write_atomically(folder.config, lambda aside: write_yaml(config, aside))
    loggers = open_loggers(
        config.loggers if rank() == 0 else [],
        folder.path,
        folder.path.name,
        config.model_dump(mode="json"),
        None if state is None else state["step"],
        say,
    )
    failed = True
    try:
        with memory_explained():
            run = assemble(folder, parts, checkpoints, content, state, console, loggers)
        if state is None and rank() == 0:
            draw_views(run.dataset, plan, folder)
        elif state is not None:
            say(f"resumed at step {run.step}")
        try:
            train(run)
        finally:
            run.display.close()
        failed = False
    except Interrupted:
        failed = False  # it goes on
        raise
    finally:
        for logger in loggers:
            logger.close(failed=failed)
    if rank() == 0:
        say(summary(folder, config))


def assemble(
    folder: RunFolder,
    parts: Parts,
    checkpoints: Checkpoints,
    content: dict[str, Any],
    state: State | None,
    console: Console,
    loggers: list[Logger],
) -> Training:
    """Everything that takes part in the training, on its device, in the state it was left in."""
    config, data, fabric = parts.config, parts.data, parts.fabric
    plan, method = parts.plan, parts.method
    if config.sync_batch_norm and parts.place.ranks > 1:
        synchronise(method)
    if config.channels_last:
        method.to(memory_format=torch.channels_last)
    method.to(fabric.device)
    if config.compile:
        compile_backbones(method, fabric.device, lambda text: console.print(text, markup=False))
    step = None if state is None else int(state["step"])

    def tell(lines: list[dict[str, Any]]) -> None:
        for logger in loggers:
            logger.log(lines)

    run = Training(
        fabric=fabric,
        method=method,
        optimizer=build_optimizer(method, config),
        plan=plan,
        dataset=build_dataset(config, data.unlabelled),
        inputs=lambda batch: (ready_views(batch, plan, fabric.device),),
        checkpoints=checkpoints,
        metrics=Metrics(folder.metrics, resumed_at=step, writes=rank() == 0, tell=tell),
        bad_images=BadImages(folder.bad_images, len(data.unlabelled), plan.images_per_epoch),
        display=Display(plan.steps, step or 0, plan.order.steps_per_epoch, console),
        probe=build_probe(config, data, method.student.backbone, fabric.device, parts.place),
        on_save=lambda run: folder.export(
            run.method.student.backbone.net,
            run.method.student.head,
            card(config, data, run, folder),
        ),
        config=config.model_dump(mode="json"),
        data=content,
    )
    if state is not None:
        run.restore(state)
    return run


def load_on_all_ranks(
    checkpoints: Checkpoints, folder: RunFolder, device: torch.device, say: Callable[[str], None]
) -> State | None:
    """The newest good checkpoint; the first rank looks first, and sets damaged ones aside."""
    state = checkpoints.load(say) if rank() == 0 else None
    mine = torch.tensor(-1 if state is None else state["step"], device=device)
    step = int(from_first(mine))
    if rank() != 0 and step >= 0:
        state = checkpoints.load(say)
        if state is None or state["step"] != step:
            raise RunError(
                f"The first rank goes on at step {step}, but its checkpoint is not in "
                f"{folder.path.absolute()} here: put --out on a disk that all nodes share."
            )
    return state


def refuse_different_ranks(mine: str) -> None:
    """All ranks must have the same images, or their steps would part."""
    if len(set(gather_things([mine]))) > 1:
        raise RunError(
            "The ranks do not have the same images: give all nodes the same data, or a shared disk."
        )


def refuse_other_data(folder: RunFolder, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A run goes on with the images it began with: other ones would be another run."""
    if before != now:
        raise UserError(
            f"The images are not those that {folder.path} was trained on ({before['images']:,} "
            f"then, {now['images']:,} now): restore them, or choose another --out."
        )


def refuse_another_run(folder: RunFolder, before: PretrainConfig, config: PretrainConfig) -> None:
    """A folder belongs to one run: anything but the same configuration is a mistake."""
    different = differences(before, config)
    if different:
        raise UserError(
            f"{folder.path} holds another run ({'; '.join(different)}): "
            "choose another --out, or use the same settings to go on with it."
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
    return lines


def draw_views(dataset: Samples, plan: Plan, folder: RunFolder) -> None:
    """A picture of what the network will see: eight images, one column each, a row a view."""
    keys = next(plan.order.keys(0, 1))[:8]
    views = finish_views(dataset.__getitems__(keys), CPU, (0.0,) * 3, (1.0,) * 3)
    save_image(torch.cat(views), folder.views, nrow=len(keys))
