"""Checkpoints that are whole or not there: written aside, flushed to disk, then renamed."""

from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch

from lewel.errors import RunError
from lewel.files import write_atomically

State = dict[str, Any]


class Checkpoints:
    """The checkpoints of one run: the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self.newest: int | None = None  # the step that was saved or loaded last

    def paths(self) -> list[Path]:
        """All complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.pt"))

    def save(self, step: int, state: State) -> Path:
        """Write the state at a step, then let go of the oldest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:09d}.pt"
        try:
            write_atomically(path, lambda aside: torch.save(state, aside))
        except (OSError, RuntimeError) as error:
            kept = self.paths()
            raise RunError(
                f"The checkpoint of step {step} could not be written to {self.folder} "
                f"({_reason(error)}): {f'{kept[-1].name} is whole; ' if kept else ''}"
                "make room and run the same command again."
            ) from error
        self.newest = step
        for old in self.paths()[: -self.keep]:
            if old != path:
                old.unlink()
        return path

    def load(self, say: Callable[[str], None]) -> State | None:
        """The newest checkpoint that is whole, or None where there is none."""
        for path in reversed(self.paths()):
            try:
                with ZipFile(path) as archive:
                    damaged = archive.testzip()
                if damaged is None:
                    state: State = torch.load(path, map_location="cpu", weights_only=True)
                    self.newest = state["step"]
                    return state
            except (BadZipFile, UnpicklingError, RuntimeError, EOFError, OSError) as error:
                damaged = str(error).splitlines()[0]
            say(f"{path.name} is damaged ({damaged}): set aside, trying the one before it.")
            path.rename(path.with_suffix(".damaged"))
        if any(self.folder.glob("*.damaged")):
            raise RunError(
                f"No checkpoint in {self.folder} can be read: restore one, or use another --out."
            )
        return None


def _reason(error: BaseException) -> str:
    """What the disk said; torch hides it in its own errors, or loses it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return "is the disk full?"
