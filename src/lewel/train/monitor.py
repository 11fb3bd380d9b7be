"""What a run watches for: collapse, numbers that are not finite, images that can't be read."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lewel.errors import RunError
from lewel.ops.ranks import gather_things, highest, rank

COLLAPSED = 0.1  # spread of the embeddings; 1 for random directions, 0 when all are equal
SETTLED = 0.2  # share of the training after which the teacher has followed the student
BAD_SHARE = 0.05
BAD_GRACE = 100  # images seen before the share of bad ones is judged


class CollapseWatch:
    """Says once, in plain words, that all images get the same embedding."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.warned = say, False

    def look(self, lines: list[dict[str, Any]], progress: float) -> None:
        """Judge the steps reported last, by the student's and the teacher's embeddings.

        An EMAN teacher starts with statistics that fit nothing, and is judged later.
        """
        names = ("spread", "target_spread") if progress > SETTLED else ("spread",)
        means = [
            sum(line[name] for line in lines) / len(lines)
            for name in names
            if lines and all(name in line for line in lines)
        ]
        if not means:
            return
        lowest = min(means)
        if lowest < COLLAPSED and not self.warned:
            self.say(
                f"Collapse: all images get nearly the same embedding (spread {lowest:.3f}, healthy "
                "is near 1). Lower --optim.lr, raise the batch size, or change --teacher.momentum."
            )
        self.warned = lowest < COLLAPSED


class FiniteWatch:
    """A flag on the device that falls at the first loss that is not finite."""

    def __init__(self, device: torch.device) -> None:
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    def look(self, loss: Tensor) -> None:
        self.finite &= loss.detach().isfinite()

    def check(self, step: int, network: nn.Module | None = None) -> None:
        """Read the flag (this waits for the device), and look at all weights before a save."""
        finite = self.finite
        if network is not None:
            tensors = [*network.parameters(), *network.buffers()]
            norms = torch._foreach_norm([t.detach() for t in tensors if t.is_floating_point()])
            finite = finite & torch.stack([norm.float() for norm in norms]).isfinite().all()
        if highest([int(not finite.item())], self.finite.device)[0]:
            raise RunError(
                f"The loss or the weights stopped being finite by step {step}: nothing was "
                "saved since. Lower --optim.lr (--lr where a backbone is judged) or use "
                "--precision 32; the last checkpoint is good."
            )


class BadImages:
    """Counts images that can't be read over all workers and ranks, and lists them in a file."""

    def __init__(
        self, path: Path, total: int, per_epoch: int, allowed: float | None = None
    ) -> None:
        self.path, self.total = path, total
        self.allowed = BAD_SHARE if allowed is None else allowed
        self.grace = min(BAD_GRACE, per_epoch) if self.allowed else 0
        self.bad: set[int] = set()
        self.found: list[tuple[int, str, str]] = []  # not yet told to the other ranks
        self.example = ""
        if not self.allowed and rank() == 0:  # one stops a run: it may be mended since
            path.unlink(missing_ok=True)
        if not self.allowed or not path.exists():
            return
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines and not lines[-1].endswith("}"):  # cut off by a kill
            lines.pop()
            if rank() == 0:
                path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        for line in map(json.loads, lines):
            self._add(line["index"], line["image"], line["reason"])

    def look(self, found: Iterable[tuple[int, str, str]]) -> None:
        """Take what one batch found."""
        self.found += found

    def judge(self, seen: int, device: torch.device) -> None:
        """List what all ranks found; `seen` is how many images the run has asked for so far."""
        new = gather_things(self.found) if highest([len(self.found)], device)[0] else []
        self.found = []
        for index, name, why in new:
            if self._add(index, name, why) and rank() == 0:
                line = json.dumps({"index": index, "image": name, "reason": why})
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
        looked_at = min(seen, self.total)
        if seen >= self.grace and len(self.bad) > self.allowed * looked_at:
            raise RunError(
                f"{len(self.bad)} of the {looked_at} images seen could not be read, more than "
                f"{self.allowed:.0%} (for example {self.example}). "
                f"All are listed in {self.path}: mend them"
                f"{', delete this list' if self.allowed else ''} and run the same command again."
            )

    def _add(self, index: int, name: str, why: str) -> bool:
        """Count an image once; whether it is new."""
        if index in self.bad:
            return False
        self.bad.add(index)
        self.example = f"{name}: {why}"
        return True
