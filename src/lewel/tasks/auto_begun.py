"""`lewel pretrain` without a recipe where the run has been begun: its own settings are used."""

from pathlib import Path
from typing import Any

from lewel.config.configure import configure
from lewel.config.pretrain import PretrainConfig
from lewel.data.pack.urls import shown
from lewel.errors import UserError
from lewel.interop.weights import read_config
from lewel.tasks.healing import settings_before
from lewel.train.run_folder import RunFolder

CHOSEN = ("lewel_b", "lewel_m")  # methods that a run without --method may have


def begun_run(out: Path | None, name: str, method: str | None, data: str) -> Path | None:
    """The run folder of the same command, if it has been begun: its settings stay."""
    if out is not None:
        return out if is_begun(out) else None
    methods = CHOSEN if method is None else (method,)
    folders = [Path("runs") / f"{name}-{one}" for one in methods]
    begun = [one for one in folders if is_begun(one) and is_of(one, data)]
    if len(begun) > 1:
        raise UserError(
            f"{' and '.join(map(str, begun))} both exist: give "
            f"{' or '.join(f'--method {one}' for one in methods)} to resume one of them, or --out "
            "for another run."
        )
    return begun[0] if begun else None


def is_begun(run: Path) -> bool:
    """Whether a folder holds settings of a run, in config.yaml or in a checkpoint."""
    folder = RunFolder(run)
    return folder.config.exists() or any(folder.checkpoints.glob("step-*.pt"))


def recipe_of(run: Path) -> str | dict[str, Any]:
    """The settings of a run: config.yaml, or where it is lost or damaged, a checkpoint's."""
    folder = RunFolder(run)
    if settings_before(folder)[0] is None:
        for path in sorted(folder.checkpoints.glob("step-*.pt"), reverse=True):
            if stored := read_config(path):
                return stored
    return str(folder.config)


def is_of(run: Path, data: str) -> bool:
    """Whether a run has been begun on this data; a damaged one is examined by its command."""
    try:
        before, now = (configure(one, recipe_of(run), {}).data for one in (None, data))
    except UserError:
        return True
    return shown(before) == shown(now)


def notes_of_begun(run: Path, config: PretrainConfig, budget: float | None) -> list[str]:
    """Whose settings these are, and that a budget does not change them."""
    notes = [f"{run} exists: its settings are used; --out NEW starts another run."]
    if budget is not None:
        notes.append(
            f"--budget chooses the length of new runs; this one has {config.epochs} epochs. "
            "--epochs N in its place trains for longer."
        )
    return notes
