"""metrics.jsonl: one line for each step, each step once, also after a kill and a resume."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lewel.files import write_atomically
from lewel.ops.ranks import mean_over_ranks


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
        if writes:
            self._drop_after(-1 if resumed_at is None else resumed_at)

    def _drop_after(self, step: int) -> None:
        """Drop the lines after the checkpoint that the run resumes from."""
        if not self.path.exists():
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]  # a kill may cut the last one
        kept = [line for line in whole if (_step(line) or 0) <= step and _step(line) is not None]
        write_atomically(self.path, lambda aside: aside.write_bytes(b"".join(kept)))

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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics.jsonl that are not damaged; none where the file is missing."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if _step(line) is not None]


def _step(line: bytes) -> int | None:
    """The step of a line; None where it is damaged."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    step = content.get("step") if isinstance(content, dict) else None
    return step if isinstance(step, int) else None
