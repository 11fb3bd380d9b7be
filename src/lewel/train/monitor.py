"""Monitoring of a run: representation collapse, non-finite values, corrupt images."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lewel.data.sources.images import CORRUPT_GRACE, CORRUPT_LIMIT, UnreadableImage
from lewel.errors import RunError
from lewel.files import write_atomically
from lewel.ops.ranks import gather_objects, highest, on_rank_0, rank

COLLAPSED = 0.1  # embedding std: 1 for random unit vectors, 0 when all are equal
SETTLED = 0.2  # fraction of the training after which the teacher is checked too


class CollapseWatch:
    """Reports representation collapse, once."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report, self.warned = report, False

    def check(self, lines: list[dict[str, Any]], progress: float) -> None:
        """Check the embedding std of student and teacher over the last reported steps.

        An EMAN teacher starts with initial batch norm statistics, so it is checked later.
        """
        names = ["embedding_std", "teacher_embedding_std"][: 2 if progress > SETTLED else 1]
        means = [
            sum(line[name] for line in lines) / len(lines)
            for name in names
            if lines and all(name in line for line in lines)
        ]
        if not means:
            return
        lowest = min(means)
        if lowest < COLLAPSED and not self.warned:
            self.report(
                f"Collapse: all images get nearly the same embedding (embedding std {lowest:.3f}, "
                "healthy is near 1). Lower --optim.lr, raise the batch size, or change "
                "--teacher.momentum."
            )
        self.warned = lowest < COLLAPSED


class FiniteWatch:
    """A flag on the device, cleared at the first loss that is not finite."""

    def __init__(self, device: torch.device) -> None:
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    def update(self, loss: Tensor) -> None:
        self.finite &= loss.detach().isfinite()

    def check(self, step: int, network: nn.Module | None = None) -> None:
        """Read the flag (this waits for the device); before a save, check all weights too."""
        finite = self.finite
        if network is not None:
            tensors = [*network.parameters(), *network.buffers()]
            norms = torch._foreach_norm([t.detach() for t in tensors if t.is_floating_point()])
            finite = finite & torch.stack([norm.float() for norm in norms]).isfinite().all()
        if highest([int(not finite.item())], self.finite.device)[0]:
            raise RunError(
                f"The loss or the weights stopped being finite by step {step}: nothing was "
                "saved since. Lower --optim.lr (--lr in evaluations) or use "
                "--precision 32; the last checkpoint is intact."
            )


@dataclass(frozen=True)
class Found:
    """A corrupt image."""

    index: int
    image: str
    reason: str


def _line(found: Found) -> str:
    return json.dumps(asdict(found)) + "\n"


def _read_list(path: Path) -> list[Found]:
    """The images in a list; a kill may have cut its last line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Found(**json.loads(line)) for line in lines if line.endswith("}")]


def _is_readable(index: int, read: Callable[[int], object]) -> bool:
    try:
        read(index)
    except UnreadableImage:
        return False
    return True


class CorruptImages:
    """Counts corrupt images over all workers and ranks, and lists them in a file."""

    def __init__(
        self, path: Path, total: int, per_epoch: int, allowed: float | None = None
    ) -> None:
        self.path, self.total = path, total
        self.allowed = CORRUPT_LIMIT if allowed is None else allowed
        self.grace = min(CORRUPT_GRACE, per_epoch) if self.allowed else 0
        self.corrupt: set[int] = set()
        self.found: list[tuple[int, str, str]] = []  # not yet sent to the other ranks
        self.example = ""
        if not self.allowed and rank() == 0:  # one stops the run: repaired by now?
            path.unlink(missing_ok=True)
        if not self.allowed or not path.exists():
            return
        listed = _read_list(path)
        if rank() == 0:  # without a line that a kill has cut
            write_atomically(path, lambda temp: temp.write_text("".join(map(_line, listed))))
        for one in listed:
            self._count(one.index, one.image, one.reason)

    def add(self, found: Iterable[tuple[int, str, str]]) -> None:
        """Add the corrupt images of a batch."""
        self.found += found

    def check(self, seen: int, device: torch.device) -> None:
        """Write the corrupt images of all ranks; `seen` is the number of images read so far."""
        new = gather_objects(self.found) if highest([len(self.found)], device)[0] else []
        self.found = []
        for index, name, why in new:
            if self._count(index, name, why) and rank() == 0:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(_line(Found(index, name, why)))
        # A resumed run may know of corrupt images that it has not read again yet.
        read = max(min(seen, self.total), len(self.corrupt))
        if seen >= self.grace and len(self.corrupt) > self.allowed * read:
            raise RunError(
                f"{len(self.corrupt)} of the {read} images read are corrupt, more than "
                f"{self.allowed:.0%} (for example {self.example}). "
                f"All are listed in {self.path}: repair them and run the same command to resume."
            )

    def forget_repaired(
        self, read: Callable[[int], object], seen: int, device: torch.device
    ) -> int:
        """Read the listed images again if they would stop the run -> how many are repaired."""
        limit = self.allowed * min(seen, self.total)
        if len(self.corrupt) <= limit:
            return 0

        def listed_still(beat: Callable[[], None]) -> list[Found]:
            still: list[Found] = []
            for one in _read_list(self.path):
                beat()
                # Above the limit they stop the run in any case: the others are not read.
                if len(still) > limit or not _is_readable(one.index, read):
                    still.append(one)
            return still

        before = len(self.corrupt)
        still = on_rank_0(listed_still, device)
        self.corrupt = set()
        for one in still:
            self._count(one.index, one.image, one.reason)
        if rank() == 0:
            write_atomically(self.path, lambda temp: temp.write_text("".join(map(_line, still))))
        return before - len(still)

    def _count(self, index: int, name: str, why: str) -> bool:
        """Count an image once -> whether it is new."""
        if index in self.corrupt:
            return False
        self.corrupt.add(index)
        self.example = f"{name}: {why}"
        return True
