"""Checkpoints, written atomically with a checksum; damaged ones are skipped on loading."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch

from lewel.errors import RunError, load_reason
from lewel.files import ZIP_END, add_zip_comment, write_atomically

State = dict[str, Any]
# The comment at the end of the zip file: this, and the CRC-32 of all bytes before its digits.
SEAL = b"lewel checkpoint, crc32 "
DIGITS = 8
BLOCK = 1 << 20


class Checkpoints:
    """The checkpoints of one run: the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self.newest: int | None = None  # the step that was saved or loaded last

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.pt"

    def paths(self) -> list[Path]:
        """All complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.pt"))

    def save(self, step: int, state: State) -> Path:
        """Write the state at a step, then delete the oldest checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(step)
        try:
            write_atomically(path, lambda aside: write_sealed(state, aside))
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
                damaged = find_damage(path)
                if damaged is None:
                    state = self._read(path)
                    if isinstance(state, dict) and path == self.path(state.get("step", -1)):
                        return state
                    damaged = "it is not what its name says"
            except (BadZipFile, UnpicklingError, RuntimeError, EOFError, OSError) as error:
                damaged = load_reason(error)
            report(f"{path.name} is damaged ({damaged}): set aside, loading the one before.")
            path.rename(path.with_suffix(".damaged"))
        if any(self.folder.glob("*.damaged")):
            raise RunError(
                f"No checkpoint in {self.folder} can be read: restore one, or use another --out."
            )
        return None

    def load_step(self, step: int) -> State | None:
        """The checkpoint of a step that another rank has checked; None where it is not here."""
        path = self.path(step)
        return self._read(path) if path.exists() else None

    def _read(self, path: Path) -> State:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
        self.newest = state.get("step") if isinstance(state, dict) else None
        return state


def write_sealed(state: State, path: Path) -> None:
    """Write a state by torch.save, and its checksum as the comment of the zip file."""
    torch.save(state, path)
    add_zip_comment(path, SEAL + b"0" * DIGITS)
    digits = _crc(path, path.stat().st_size - DIGITS)
    with path.open("r+b") as file:
        file.seek(-DIGITS, os.SEEK_END)
        file.write(digits)


def find_damage(path: Path) -> str | None:
    """What is damaged in a checkpoint; None if all its bytes are as they were written.

    Version 0.1 wrote no checksum of its own: there the zip file's checksums of the tensors count.
    """
    size = path.stat().st_size
    tail = _tail(path, len(SEAL) + DIGITS)
    if tail.startswith(SEAL):
        same = tail.removeprefix(SEAL) == _crc(path, size - DIGITS)
        return None if same else "its checksum differs"
    end = tail[-22:]
    if not (end.startswith(ZIP_END) and end.endswith(b"\0\0")):
        return "its end is missing or changed"
    with ZipFile(path) as archive:
        return archive.testzip()


def _tail(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(-min(count, path.stat().st_size), os.SEEK_END)
        return file.read()


def _crc(path: Path, size: int) -> bytes:
    """The CRC-32 of the first bytes of a file, as hexadecimal digits."""
    value = 0
    with path.open("rb") as file:
        while size > 0:
            block = file.read(min(BLOCK, size))
            value = zlib.crc32(block, value)
            size -= BLOCK
    return f"{value:08x}".encode("ascii")


def _reason(error: BaseException) -> str:
    """The system's error message, which torch wraps in its own errors or loses."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return "is the disk full?"
