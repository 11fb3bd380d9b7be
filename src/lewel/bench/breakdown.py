"""Time of a training step, by part."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torchvision.utils import save_image

from lewel.bench.steps import OurStep
from lewel.bench.timing import clock
from lewel.bench.workload import Workload
from lewel.data.sources.open import open_data
from lewel.data.sources.scenes import Scenes
from lewel.data.sources.source import Source
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import TwoViews, finish_views
from lewel.nn.backbone import MEAN, STD
from lewel.nn.mlp import MLP

PARTS = (
    "decode wait",
    "augment",
    "backbone",
    "teacher",
    "heads",
    "loss",
    "backward",
    "optimiser",
    "EMA",
)
SAMPLES = 16  # images that data loading is timed on; scaled to the batch


class Laps:
    """Seconds by label; nested parts count for the innermost label only."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, dict.fromkeys(PARTS, 0.0)
        self.open: list[str] = []
        self.last = clock(device)

    def _count(self) -> None:
        now = clock(self.device)
        if self.open:
            self.seconds[self.open[-1]] += now - self.last
        self.last = now

    def enter(self, label: str) -> None:
        self._count()
        self.open.append(label)

    def leave(self) -> None:
        self._count()
        self.open.pop()

    def watch(self, module: nn.Module, label: str, stack: ExitStack) -> None:
        """Count a module's forward under a label, until the stack is closed."""
        before: Callable[..., None] = lambda *_: self.enter(label)  # noqa: E731
        after: Callable[..., None] = lambda *_: self.leave()  # noqa: E731
        stack.callback(module.register_forward_pre_hook(before).remove)
        stack.callback(module.register_forward_hook(after).remove)


def step_parts(entry: OurStep, device: torch.device, rounds: int) -> dict[str, float]:
    """Median seconds of each part of our step except data loading; `loss` is the remainder."""
    rows = [_one_step(entry, device) for _ in range(rounds)]
    return {part: median(row[part] for row in rows) for part in PARTS}


def _one_step(entry: OurStep, device: torch.device) -> dict[str, float]:
    method: Any = entry.method
    laps = Laps(device)
    with ExitStack() as stack:
        laps.watch(method.student.backbone, "backbone", stack)
        laps.watch(method.student.head, "heads", stack)
        if hasattr(method, "teacher"):
            laps.watch(method.teacher, "teacher", stack)
        for child in method.children():
            if isinstance(child, MLP):
                laps.watch(child, "heads", stack)
        laps.enter("loss")
        out = method(entry.views)
        laps.leave()
    for label, part in (
        ("backward", out.loss.backward),
        ("optimiser", entry.optimizer.step),
        ("optimiser", lambda: entry.optimizer.zero_grad(set_to_none=True)),
        ("EMA", lambda: method.after_step(0.5, out.keys)),
    ):
        laps.enter(label)
        part()
        laps.leave()
    return laps.seconds


def reading_parts(work: Workload, data: str | None, rounds: int) -> dict[str, float]:
    """Seconds to read and crop a batch in this process, and to augment its colours."""
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            draw_jpegs(Path(folder), work.image_size)
        source: Source = open_data(data or folder, image_size=work.image_size).unlabelled
        recipes = [ViewRecipe(), ViewRecipe(blur=0.1, solarise=0.2)]
        dataset = TwoViews(source, recipes, work.image_size, work.seed)
        many = min(SAMPLES, len(source))
        scale = work.batch_size / many
        rows = []
        for number in range(rounds + 1):
            begun = time.perf_counter()
            batch = dataset.__getitems__([(number, index) for index in range(many)])
            read = time.perf_counter()
            finish_views(batch, torch.device("cpu"), MEAN, STD)
            rows.append((read - begun, time.perf_counter() - read))
    read_times, augment_times = zip(*rows[1:], strict=True)  # the first round is a warm-up
    return {
        "decode wait": scale * median(read_times),
        "augment": scale * median(augment_times),
    }


def draw_jpegs(folder: Path, image_size: int) -> None:
    """Write embedded scenes as JPEG files, so that decoding is timed."""
    scenes = Scenes("train", size=image_size * 3 // 2, seed=0)
    for index in range(SAMPLES):
        save_image(scenes.read(index) / 255, folder / f"{index:03d}.jpg")
