"""What `lewel doctor` measures: reading on a core, a training step on each device, a checkpoint."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from lewel.config.build import build_method, build_optimizer
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import resolve
from lewel.config.sizes import crop_sizes
from lewel.data.sources.open import open_data
from lewel.data.sources.scenes import Scenes
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import TwoViews
from lewel.errors import RunError, UserError
from lewel.methods.base import Method
from lewel.nn.views import whole_views
from lewel.ops.randomness import generator
from lewel.tasks.doctor_facts import Facts
from lewel.train.checkpoint import Checkpoints
from lewel.train.estimate import LONG, is_out_of_memory

Tell = Callable[[str], None]
HEIGHT, WIDTH, VIEW = 375, 500, 224  # the commonest size of ImageNet's files, and its views
FILES, GRAIN = 8, 16.0  # so that a file has about 100 kB, as ImageNet's
PATIENCE = 20.0  # seconds of wall time after which no larger step is timed: the machine is busy
ROOM = 4e9  # bytes of free memory that the larger step needs on a CPU, with its checkpoint


class Size(NamedTuple):
    """A step of LEWEL_B with the paper's heads, and its images on a CPU and on a GPU."""

    what: str
    settings: dict[str, Any]
    on_cpu: int
    on_gpu: int


SIZES = (
    Size("ResNet-18 at 64 px", {"backbone": "resnet18", "image_size": 64}, 16, 64),
    Size("ResNet-50 at 224 px", {"backbone": "resnet50", "image_size": 224}, 2, 32),
)


class Reading(NamedTuple):
    """Images a second of one core: JPEG files decoded, and decoded and cut into two views."""

    what: str
    decoded: float = 0.0
    views: float = 0.0
    error: str = ""


class Stepped(NamedTuple):
    """A training step: forward, backward, optimiser and teacher; on a CPU, on one core."""

    what: str
    images: int
    seconds: float = 0.0
    error: str = ""
    skipped: str = ""  # why it was not timed


class Checkpoint(NamedTuple):
    """The checkpoint of the last step that was timed, written to the current folder."""

    bytes: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Speeds:
    """All measurements; steps by the device's name."""

    reading: Reading
    steps: dict[str, tuple[Stepped, ...]]
    checkpoint: Checkpoint


def measure(facts: Facts, tell: Tell) -> Speeds:
    """Measure reading, steps on each device that can be used, and a checkpoint."""
    tell("reading JPEG files")
    begun = time.monotonic()
    cpu, *gpus = facts.devices
    taken: list[Stepped] = []
    with one_thread():
        reading = measure_reading(FILES)
        tell("training steps on the CPU")
        for size in SIZES:
            spent = time.monotonic() - begun
            if taken and (cpu.free < ROOM or spent > PATIENCE):
                busy = f"not timed, the machine is busy (the rest took {spent:.0f} s)"
                why = "too little memory is free" if cpu.free < ROOM else busy
                taken.append(Stepped(size.what, 0, skipped=why))
                continue
            trial = Trial(size)
            taken.append(trial.timed(size.on_cpu, torch.device("cpu")))
    tell("writing a checkpoint")
    checkpoint = trial.checkpoint(Path.cwd())
    steps = {"cpu": tuple(taken)}
    for gpu in gpus:
        tell(f"training steps on {gpu.name}")
        sizes = [] if gpu.error else SIZES
        steps[gpu.name] = tuple(
            Trial(size).timed(size.on_gpu, torch.device(gpu.name)) for size in sizes
        )
    return Speeds(reading, steps, checkpoint)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core, as a data worker does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_reading(files: int) -> Reading:
    """Decode and cut JPEG files in this process; CPU time, so that other load does not count."""
    what = f"{WIDTH} x {HEIGHT} px"
    try:
        with tempfile.TemporaryDirectory() as folder:
            size = draw_photos(Path(folder), files)
            what = f"{what}, {size / 1e3:.0f} kB"
            source = open_data(folder, image_size=VIEW).unlabelled
            views = TwoViews(source, (ViewRecipe(), ViewRecipe(blur=0.1)), VIEW, seed=0)
            keys = [(0, index) for index in range(len(source))]
            views.__getitems__(keys)  # a warm-up, which also fills the file cache
            begun = time.process_time()
            for index in range(len(source)):
                source.read(index)
            decoded = time.process_time()
            batch = views.__getitems__([(1, index) for _, index in keys])
            done = time.process_time()
    except (OSError, RuntimeError, UserError) as error:
        return Reading(what, error=first_line(error))
    if batch.corrupt:
        return Reading(what, error=batch.corrupt[0][2])
    return Reading(what, files / (decoded - begun), files / (done - decoded))


def draw_photos(folder: Path, files: int) -> float:
    """Write scenes as JPEG files as large as ImageNet's -> their mean size in bytes."""
    scenes = Scenes("train", size=WIDTH, seed=0)
    for index in range(files):
        pixels = scenes.read(index)[:, :HEIGHT].permute(1, 2, 0).numpy()
        grain = generator(index).normal(0, GRAIN, pixels.shape)  # detail, as photographs have it
        photo = np.clip(pixels + grain, 0, 255).astype(np.uint8)
        Image.fromarray(photo).save(folder / f"{index}.jpg", quality=90)
    return float(np.mean([path.stat().st_size for path in folder.iterdir()]))


class Trial:
    """A method with its optimiser, built when it is timed."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.config: PretrainConfig = resolve(size.settings, {})
        self.method: Method | None = None

    def timed(self, images: int, device: torch.device) -> Stepped:
        """The time of the second step, or of the first where that takes long."""
        what = self.size.what
        try:
            seconds = [self.step(images, device)]
            if seconds[0] < LONG:
                seconds.append(self.step(images, device))
        except RuntimeError as error:  # includes all of CUDA's
            if is_out_of_memory(error) and images > 2:
                return self.timed(images // 2, device)
            return Stepped(what, images, error=first_line(error))
        return Stepped(what, images, seconds[-1])

    def step(self, images: int, device: torch.device) -> float:
        """Seconds of one step on noise: the content does not change the time."""
        if self.method is None:
            self.method = build_method(self.config, images=20_000).train()
            if self.config.channels_last:
                self.method.to(memory_format=torch.channels_last)
            self.method.to(device)
            self.optimizer = build_optimizer(self.method, self.config)
        views = whole_views(
            [torch.randn(images, 3, size, size, device=device) for size in crop_sizes(self.config)]
        )
        begun = now(device)
        out = self.method(views)
        out.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.method.after_step(0.5, out.keys)
        return now(device) - begun

    def checkpoint(self, folder: Path) -> Checkpoint:
        """Write what a run would save, and delete it."""
        if self.method is None:
            return Checkpoint(error="no step was taken, nothing to write")
        state = {
            "step": 1,
            "method": self.method.state_dict(),
            "optim": self.optimizer.state_dict(),
        }
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".lewel-doctor-") as place:
                begun = time.perf_counter()
                path = Checkpoints(Path(place), keep=1).save(1, state)
                return Checkpoint(path.stat().st_size, time.perf_counter() - begun)
        except (OSError, RunError) as error:
            cause = error.__cause__ or error
            return Checkpoint(error=f"it cannot be written to this folder ({first_line(cause)})")


def now(device: torch.device) -> float:
    """The time in seconds after all work of the device; of a CPU that of this process alone."""
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize(device)
    return time.perf_counter()


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its last dot."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".:")
