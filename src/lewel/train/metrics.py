"""metrics.jsonl: one line for each step, each step once, also after a kill and a resume."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lewel.files import PARTIAL, write_atomically
from lewel.ops.ranks import mean_over_ranks
from lewel.train.summary import Summary

BLOCK = 1 << 20  # bytes that are read at once
TAIL = 1 << 16  # bytes before a place in a file by which it is known again
KEPT_EVERY = 10_000  # lines after which a summary is written beside the file
RENAMED = {"spread": "embedding_std", "target_spread": "teacher_embedding_std"}  # of version 0.1


class Metrics:
    """Collects scalars on the device and writes them in bulk, so that no step waits for them.

    All ranks collect and flush together; the rank with `writes` writes their mean and passes the
    lines to `on_write`.
    """

    def __init__(
        self,
        path: Path,
        resumed_at: int | None,
        writes: bool = True,
        on_write: Callable[[list[dict[str, Any]]], None] = lambda lines: None,
    ) -> None:
        self.path, self.writes, self.on_write = path, writes, on_write
        self.waiting: list[tuple[dict[str, Any], dict[str, Tensor]]] = []
        self.reader = MetricsReader(path)
        if writes:
            self._drop_after(-1 if resumed_at is None else resumed_at)

    def _drop_after(self, step: int) -> None:
        """Drop the lines after the checkpoint that the run resumes from, and damaged ones."""
        if not self.path.exists():
            return
        if self.reader.summary.step > step:  # written after a checkpoint that is lost
            self.reader.forget()
        self.reader.update(step)
        if self.reader.damaged or self.reader.without_step:
            write_atomically(self.path, lambda aside: write_intact(self.path, aside, step))
            self.reader.forget()
        else:
            os.truncate(self.path, self.reader.place)

    def add(self, numbers: dict[str, Any], on_device: dict[str, Tensor]) -> None:
        """Record one step: Python numbers, and scalars still being computed on the device."""
        self.waiting.append((numbers, on_device))

    def annotate(self, numbers: dict[str, Any]) -> None:
        """Add values to the last recorded step."""
        self.waiting[-1][0].update(numbers)

    def flush(self, sync: bool = False) -> list[dict[str, Any]]:
        """Read the waiting scalars in one transfer, write all lines, and return them.

        With `sync` the file is flushed to disk (fsync).
        """
        if not self.waiting:
            return []
        scalars = [value.float() for _, values in self.waiting for value in values.values()]
        numbers = iter(mean_over_ranks(torch.stack(scalars)).tolist() if scalars else [])
        lines = [
            {**plain, **{name: next(numbers) for name in values}} for plain, values in self.waiting
        ]
        self.waiting.clear()
        if self.writes:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            self.on_write(lines)
        return lines

    def summary(self) -> Summary:
        """What was written so far; only new lines are read."""
        return self.reader.update()

    def keep_summary(self) -> None:
        """Write the summary where it saves time; called after a checkpoint, never before one."""
        if self.summary().steps - self.reader.kept >= KEPT_EVERY:
            self.reader.keep()


class MetricsReader:
    """Reads a metrics.jsonl as it grows, beginning with the summary that lies beside it."""

    reading = False  # whether the summary is not complete yet
    block, pause = BLOCK, 0.0  # bytes that are read at once, and seconds after each

    def __init__(self, path: Path) -> None:
        self.path, self.beside = path, path.with_name(f".{path.stem}_summary.npz")
        self.forget()
        try:
            self.summary, about = Summary.from_bytes(self.beside.read_bytes())
            self.place, self.tail = int(about["place"]), str(about["tail"])
            self.kept = self.summary.steps
        except (OSError, ValueError, KeyError, TypeError):
            self.forget()

    def forget(self) -> None:
        """Begin with the file's first line."""
        self.summary = Summary()
        self.place, self.tail = 0, digest(b"")
        self.kept = 0  # steps of the summary that lies beside the file
        self.damaged = self.without_step = 0  # lines

    def update(self, last: int | None = None) -> Summary:
        """Read the lines that were written since the last call, or of them those up to a step."""
        try:
            with self.path.open("rb") as file:
                if not self._is_known(file):  # another file, or cut by a resume
                    self.forget()
                file.seek(self.place)
                self._read(file, last)
                self.tail = digest(tail_of(file, self.place))
        except FileNotFoundError:
            self.forget()
        return self.summary

    def keep(self) -> None:
        """Write the summary beside the file."""
        content = self.summary.to_bytes(place=self.place, tail=self.tail)
        if not self.damaged:  # a page reports them
            # Under a name of its own: a page and the run itself may write at the same time.
            number, aside = tempfile.mkstemp(PARTIAL, self.beside.name, self.beside.parent)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(content)
                os.replace(aside, self.beside)
            except OSError:
                os.unlink(aside)
                raise
            self.kept = self.summary.steps

    def keep_long(self) -> None:
        """Write the summary of a file that takes long to read, where the folder allows it."""
        if self.summary.steps - self.kept >= KEPT_EVERY:
            with suppress(OSError):
                self.keep()

    def _is_known(self, file: BinaryIO) -> bool:
        size = os.fstat(file.fileno()).st_size
        return size >= self.place and digest(tail_of(file, self.place)) == self.tail

    def _read(self, file: BinaryIO, last: int | None) -> None:
        while block := file.readlines(self.block):
            cut = not block[-1].endswith(b"\n")  # being written, or cut by a kill
            if cut:
                block.pop()
            parsed = parse(block)
            late = _first_after(parsed, last)
            found = [line for line in parsed[:late] if line is not None]
            self.place += sum(map(len, block[:late]))
            self.damaged += late - len(found)
            self.without_step += sum(_step(line) is None for line in found)
            self.summary.add(found)
            if cut or late < len(parsed):  # what is written meanwhile comes with the next call
                return
            if self.pause:
                time.sleep(self.pause)


def write_intact(source: Path, target: Path, last: int) -> None:
    """Copy the whole lines up to a step."""
    with source.open("rb") as file, target.open("wb") as copy:
        while block := file.readlines(BLOCK):
            for line, content in zip(block, parse(block), strict=True):
                step = _step(content or {})
                if line.endswith(b"\n") and step is not None and step <= last:
                    copy.write(line)


def parse(lines: list[bytes]) -> list[dict[str, Any] | None]:
    """The content of lines; None where one is damaged."""
    try:  # all at once is faster
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        found = []
    if len(found) != len(lines):
        found = [_parse_one(line) for line in lines]
    return [_renamed(line) if isinstance(line, dict) else None for line in found]


def _parse_one(line: bytes) -> Any:
    try:
        return json.loads(line) if line.strip() else {}
    except ValueError:
        return None


def _renamed(line: dict[str, Any]) -> dict[str, Any]:
    if "spread" in line or "target_spread" in line:
        return {RENAMED.get(key, key): value for key, value in line.items()}
    return line


def tail_of(file: BinaryIO, place: int) -> bytes:
    """The bytes before a place."""
    start = max(0, place - TAIL)
    file.seek(start)
    return file.read(place - start)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _first_after(lines: list[dict[str, Any] | None], last: int | None) -> int:
    """The index of the first line after a step; their number where there is none."""
    if last is None:
        return len(lines)
    late = (index for index, line in enumerate(lines) if (_step(line or {}) or 0) > last)
    return next(late, len(lines))


def _step(line: dict[str, Any]) -> int | None:
    step = line.get("step")
    return step if isinstance(step, int) else None
