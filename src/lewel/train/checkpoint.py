"""Checkpoints, written atomically; damaged ones are skipped on loading."""

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
        """Write the state at a step, then delete the oldest checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:09d}.pt"
        try:
            write_atomically(path, lambda aside: torch.save(state, aside))
        except (OSError, RuntimeError) as error:
            kept = self.paths()
            raise RunError(
                f"The checkpoint of step {step} could not be written to {self.folder} "
                f"({_reason(error)}): {f'{kept[-1].name} is intact; ' if kept else ''}"
                "free some space and run the same command to resume."
            ) from error
        self.newest = step
        for old in self.paths()[: -self.keep]:
            if old != path:
                old.unlink()
        return path

    def load(self, report: Callable[[str], None]) -> State | None:
        """The newest intact checkpoint, or None where there is none."""
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
            report(f"{path.name} is damaged ({damaged}): set aside, loading the one before.")
            path.rename(path.with_suffix(".damaged"))
        if any(self.folder.glob("*.damaged")):
            raise RunError(
                f"No checkpoint in {self.folder} can be read: restore one, or use another --out."
            )
        return None


def _reason(error: BaseException) -> str:
    """The system's error message, which torch wraps in its own errors or loses."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return "is the disk full?"
