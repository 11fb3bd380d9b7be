"""Resuming: the newest checkpoint on all ranks, and checks of data and configuration."""

from collections.abc import Callable
from typing import Any

import torch

from lewel.errors import RunError, UserError
from lewel.ops.ranks import from_rank_0, gather_objects, rank
from lewel.train.checkpoint import Checkpoints, State
from lewel.train.run_folder import RunFolder

SHOWN = 8  # differences of two runs in a message


def load_on_all_ranks(
    checkpoints: Checkpoints, device: torch.device, report: Callable[[str], None]
) -> State | None:
    """The newest intact checkpoint; rank 0 checks it, and renames damaged ones."""
    state = checkpoints.load(report) if rank() == 0 else None
    mine = torch.tensor(-1 if state is None else state["step"], device=device)
    step = int(from_rank_0(mine))
    if rank() != 0 and step >= 0:
        state = checkpoints.load_step(step)
        if state is None:
            raise RunError(
                f"The first rank resumes at step {step}, but its checkpoint is not in "
                f"{checkpoints.folder.parent.absolute()} here: put --out on a disk that all nodes "
                "share."
            )
    return state


def refuse_different_ranks(mine: str) -> None:
    """All ranks must have the same images and weights, or their steps would differ."""
    if len(set(gather_objects([mine]))) > 1:
        raise RunError(
            "The ranks do not have the same images or weights: give all nodes the same files, or a "
            "shared disk."
        )


def refuse_other_data(folder: RunFolder, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A run resumes only with the images that it was trained on."""
    if before != now:
        raise UserError(
            f"The images are not those that {folder.path} was trained on ({before['images']:,} "
            f"then, {now['images']:,} now): restore them, or choose another --out."
        )


def refuse_another_run(folder: RunFolder, different: list[str]) -> None:
    """A run folder resumes only with the same configuration."""
    if different:
        more = f"; and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
        raise UserError(
            f"{folder.path} holds another run ({'; '.join(different[:SHOWN])}{more}): "
            "choose another --out, or use the same settings to resume it."
        )
