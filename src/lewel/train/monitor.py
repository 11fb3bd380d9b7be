"""What a run watches for: collapse, numbers that are not finite, images that can't be read."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lewel.errors import RunError

COLLAPSED = 0.1  # spread of the embeddings; 1 for random directions, 0 when all are equal
BAD_SHARE = 0.05
BAD_GRACE = 100  # images seen before the share of bad ones is judged


class CollapseWatch:
    """Says once, in plain words, that all images get the same embedding."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.warned = say, False

    def look(self, lines: list[dict[str, Any]]) -> None:
        """Judge the steps reported last, by the student's and the teacher's embeddings."""
        means = [
            sum(line[name] for line in lines) / len(lines)
            for name in ("spread", "target_spread")
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

    def check(self, step: int) -> None:
        """Read the flag (this waits for the device); stop the run where it fell."""
        if not self.finite.item():
            raise RunError(
                f"The loss stopped being finite at or shortly before step {step}: nothing was "
                "saved since. Lower --optim.lr or use --precision 32; the last checkpoint is good."
            )


class BadImages:
    """Counts images that can't be read over all workers, and lists them in the run folder."""

    def __init__(self, path: Path, total: int) -> None:
        self.path, self.total = path, total
        self.bad: set[int] = set()
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            self.bad = {json.loads(line)["index"] for line in lines}

    def look(self, found: Iterable[tuple[int, str, str]], seen: int) -> None:
        """Take what one batch found; `seen` is how many images the run has asked for so far."""
        new = {index: (name, why) for index, name, why in found if index not in self.bad}
        if not new:
            return
        self.bad |= new.keys()
        with self.path.open("a", encoding="utf-8") as file:
            for index, (name, why) in new.items():
                file.write(json.dumps({"index": index, "image": name, "reason": why}) + "\n")
        looked_at = min(seen, self.total)
        if looked_at >= min(BAD_GRACE, self.total) and len(self.bad) > BAD_SHARE * looked_at:
            name, why = next(iter(new.values()))
            raise RunError(
                f"{len(self.bad)} of the {looked_at} images seen could not be read, more than "
                f"{BAD_SHARE:.0%} (for example {name}: {why}). All are listed in {self.path}."
            )
