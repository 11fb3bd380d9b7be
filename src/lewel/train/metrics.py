"""metrics.jsonl: one line for each step, every step once, whatever happens to the run."""

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
    """Collects numbers on the device and writes them in bulk, so that no step waits for them.

    All ranks collect and flush together; `writes` is for the one that writes their mean and
    tells others (`tell`) of it.
    """

    def __init__(
        self,
        path: Path,
        resumed_at: int | None,
        writes: bool = True,
        tell: Callable[[list[dict[str, Any]]], None] = lambda lines: None,
    ) -> None:
        self.path, self.writes, self.tell = path, writes, tell
        self.waiting: list[tuple[dict[str, Any], dict[str, Tensor]]] = []
        if writes:
            self._forget_after(-1 if resumed_at is None else resumed_at)

    def _forget_after(self, step: int) -> None:
        """Drop what was written after the checkpoint that the run goes on from."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_bytes().splitlines(keepends=True):
            try:
                if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                    break
            except ValueError:
                break  # cut off in the middle by a kill
            kept.append(line)
        write_atomically(self.path, lambda aside: aside.write_bytes(b"".join(kept)))

    def add(self, numbers: dict[str, Any], on_device: dict[str, Tensor]) -> None:
        """Note one step: plain numbers, and scalars that are still being computed."""
        self.waiting.append((numbers, on_device))

    def annotate(self, numbers: dict[str, Any]) -> None:
        """Add to the step noted last."""
        self.waiting[-1][0].update(numbers)

    def flush(self, sync: bool = False) -> list[dict[str, Any]]:
        """Read the waiting scalars in one transfer, write all lines, and return them.

        With `sync` the file is on the disk afterwards, whatever happens to the machine.
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
            self.tell(lines)
        return lines


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics.jsonl."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
