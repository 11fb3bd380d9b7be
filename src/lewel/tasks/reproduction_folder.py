"""The folder of a reproduction: whose it is, who works in it, and which seeds it has."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lewel.errors import UserError
from lewel.files import PARTIAL, try_lock
from lewel.tasks.reproduction_numbers import wrote
from lewel.tasks.reproduction_plan import Backbone, Setup

LOCK = ".lock"
PATIENCE, TRY = 120.0, 0.5  # seconds for commands of a killed queue to save and end


def refuse_other_files(setup: Setup) -> None:
    """Raise UserError if the folder holds files that no reproduction wrote."""
    out, comparison = setup.out, setup.own is not None
    found = {one for one in _names(out) if not one.endswith(PARTIAL)} - {LOCK}
    ours = "backbones" in found or wrote(out / "numbers.json")  # all may be known
    known = {"pages", "numbers.json"} if ours else set()
    known |= {"plan.json"} if comparison else set()
    script = out / "slurm" / "array.sbatch"
    foreign = script.exists() and b"lewel-reproduce" not in script.read_bytes()
    beside = set[str]()
    if not comparison:  # a folder for each scale, and no others
        beside = _names(out.parent) - {out.name, "paper", "small", "minutes"}
    if beside or found - {"backbones", "slurm", *known} or foreign:
        place = out if comparison else out.parent
        raise UserError(f"--out {place} holds other files: choose another --out.")


def refuse_other_settings(queue: list[Backbone]) -> None:
    """Raise UserError for backbones that were trained before a recipe changed."""
    stale = [one.folder for one in queue if one.is_stale("pretrain")]
    if stale:
        raise UserError(
            f"{len(stale)} backbones, such as {stale[0]}, were trained with other settings: a "
            "recipe has changed since. Choose another --out, or delete them."
        )


@contextmanager
def claimed(folder: Path, report: Callable[[str], None]) -> Iterator[int]:
    """Lock a folder -> the descriptor of its lock.

    Commands inherit the lock: those of a queue that was killed hold it until they have ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        deadline, told = time.monotonic() + PATIENCE, False
        while not try_lock(file.fileno()):
            if not told:
                report(f"Waiting for another queue in {folder}, or for what it left running.")
                told = True
            if time.monotonic() > deadline:
                raise UserError(
                    f"Another queue works in {folder}: wait for it, or choose another --out."
                )
            time.sleep(TRY)
        yield file.fileno()


def seeds_in(setup: Setup) -> int:
    """The number of seeds, from 0, that any backbone has here or elsewhere."""
    names = {*_names(setup.out / "backbones"), *setup.known}
    found = (re.search(r"-seed(\d+)$", name) for name in names)
    return max((int(one[1]) + 1 for one in found if one), default=0)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()
