"""Short trainings of `lewel doctor --deep`, each in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from lewel.config.methods import as_recipe
from lewel.config.settings import write_yaml
from lewel.methods.registry import method_names
from lewel.tasks.doctor_speed import Tell
from lewel.tasks.doctor_steps import small_config

Made = TypeVar("Made")
SECONDS = 600  # after which a process counts as hanging
LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "MASTER_", "PMI", "OMPI_")  # variables of another launch
RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}


class Failed(Exception):
    """A process that did not do its work; the message is its last line."""


class Place(NamedTuple):
    """Where a process computes: all that it sees of several GPUs is `visible`."""

    name: str
    accelerator: str  # cpu, cuda, mps
    visible: str | None = None

    def environment(self) -> dict[str, str]:
        """This process's variables, without those of a launcher; one thread where a CPU trains."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in RANKS and not name.startswith(LAUNCHERS)
        }
        if self.accelerator == "cpu":
            kept["OMP_NUM_THREADS"] = "1"  # other numbers of threads round differently
        if self.visible is not None:
            kept["CUDA_VISIBLE_DEVICES"] = self.visible
        return kept


class Taken(NamedTuple):
    """A step or a run, to be compared: losses, and the change of the parameters."""

    losses: list[float]
    update: Tensor
    views: Tensor | None = None


def start(words: list[str], place: Place, **more: str) -> "subprocess.Popen[str]":
    """A process of this Python in a group of its own, with more variables."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**place.environment(), **more},
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", seconds: float = SECONDS) -> str:
    """Wait for the end of a process -> what it printed; one that fails or hangs raises Failed."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Failed(f"it hung for {seconds:.0f} s") from None
    if process.returncode < 0:
        raise Failed(f"it was killed by {signal.Signals(-process.returncode).name}")
    if process.returncode:
        last = said.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise Failed(last[0].rstrip("."))
    return said


class Once(Generic[Made]):
    """Makes each thing once; what failed once fails again."""

    def __init__(self) -> None:
        self.done: dict[tuple[object, ...], Made | Failed] = {}

    def __call__(self, key: tuple[object, ...], make: Callable[[], Made]) -> Made:
        if key not in self.done:
            try:
                self.done[key] = make()
            except Failed as error:
                self.done[key] = error
        found = self.done[key]
        if isinstance(found, Failed):
            raise found
        return found


class Steps:
    """One step of every method, by place and arithmetic; each pair is one process."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.folder, self.tell = folder, tell
        self.once: Once[dict[str, Taken]] = Once()

    def taken(self, place: Place, arithmetic: str) -> dict[str, Taken]:
        """The step of each method; Failed where one of them did not take it."""
        return self.once((place.name, arithmetic), lambda: self.take(place, arithmetic))

    def take(self, place: Place, arithmetic: str) -> dict[str, Taken]:
        self.tell(f"a step of every method in {arithmetic} on {place.name}")
        folder = self.folder / f"{place.name}-{arithmetic}".replace(":", "-")
        folder.mkdir(parents=True)
        words = ["lewel.tasks.doctor_steps", str(folder), place.accelerator, arithmetic]
        finish(start(words, place))
        return {name: self.read(folder, name, arithmetic) for name in method_names()}

    def read(self, folder: Path, method: str, arithmetic: str) -> Taken:
        found = torch.load(folder / f"{method}-{arithmetic}.pt", weights_only=True)
        if "error" in found:
            raise Failed(f"{method}: {found['error'].splitlines()[0]}")
        return Taken([found["loss"]], found["update"], found["views"])


class Runs:
    """Runs of `lewel pretrain` of seconds, by name; each is made once."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.folder, self.tell = folder, tell
        self.once: Once[Path] = Once()
        folder.mkdir(parents=True)

    def start(
        self, out: Path, method: str, place: Place, devices: int = 1, sync: bool = False
    ) -> "subprocess.Popen[str]":
        """Start a run that saves after every step and keeps all checkpoints; without TF32."""
        recipe = self.folder / f"{method}{'-sync' * sync}.yaml"
        if not recipe.exists():
            more: dict[str, Any] = {"sync_batch_norm": sync}
            if not sync:  # two groups on one device equal two devices
                more |= {"contrast": {"queue": 64, "norm_groups": 2}}
            write_yaml(as_recipe(small_config(method, **more)), recipe)
        flags = ["--recipe", str(recipe), "--out", str(out), "--accelerator", place.accelerator]
        saves = ["--checkpoint-minutes", "0", "--keep-checkpoints", "999", "--log-every", "1"]
        words = ["lewel", "pretrain", "scenes", *flags, *saves, "--devices", str(devices)]
        return start(words, place, NVIDIA_TF32_OVERRIDE="0")

    def whole(self, method: str, place: Place, devices: int = 1, sync: bool = False) -> Path:
        """A run that nothing interrupts."""
        kind = f"{method}-{place.name}-{devices}{'-sync' * sync}".replace(":", "-")

        def make() -> Path:
            self.tell(f"a run of {method} on {devices} x {place.name}")
            finish(self.start(self.folder / kind, method, place, devices, sync))
            return self.folder / kind

        return self.once((kind,), make)

    def killed(self, method: str, place: Place) -> Path:
        """A run that was killed by SIGKILL after a checkpoint, then resumed to its end."""
        for attempt in range(3):
            out = self.folder / f"{method}-killed-{place.name}-{attempt}".replace(":", "-")
            self.tell(f"a run of {method} on {place.name}, killed and resumed")
            if killed_after(self.start(out, method, place), out, 2):
                self.resume(out, method, place)
                return out
        raise Failed("it ended before it was killed, three times")

    def moved(self, method: str, run: Path, to: Place) -> Path:
        """A copy of a run, cut after its fourth step, and resumed on one device elsewhere."""
        out = self.folder / f"{run.name}-to-{to.name}".replace(":", "-")
        self.tell(f"the checkpoint of {run.name} on 1 x {to.name}")
        shutil.copytree(run, out)
        for path in sorted((out / "checkpoints").glob("step-*.pt"))[5:]:
            path.unlink()
        self.resume(out, method, to)
        return out

    def resume(self, out: Path, method: str, place: Place) -> None:
        """Resume a run to its end; one that begins again proves nothing."""
        if "resumed at step" not in finish(self.start(out, method, place)):
            raise Failed("it began again instead of resuming")


def killed_after(process: "subprocess.Popen[str]", out: Path, step: int) -> bool:
    """Kill a run once it has saved so many steps; False where it ended before."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if len(list((out / "checkpoints").glob("step-*.pt"))) > step:
            break
        time.sleep(0.005)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def read_run(out: Path) -> Taken:
    """The losses of a finished run, and the change of all parameters and statistics."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    saved = sorted((out / "checkpoints").glob("step-*.pt"))
    first, last = (weights(path) for path in (saved[0], saved[-1]))
    return Taken([line["loss"] for line in lines if "loss" in line], last - first)


def weights(path: Path) -> Tensor:
    """All floating-point tensors of a checkpoint's method in a row, float64."""
    state = torch.load(path, map_location="cpu", weights_only=True)["method"]
    return torch.cat([v.flatten().double() for v in state.values() if v.is_floating_point()])
