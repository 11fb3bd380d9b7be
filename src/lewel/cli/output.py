"""How commands print what they found."""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from lewel.data.pack.urls import shown
from lewel.progress import plain_console, rank_from_outside, show

if TYPE_CHECKING:
    from lewel.config.evaluate import DenseConfig
    from lewel.tasks.outcome import Accuracy, Evaluated


def say(console: Console, *lines: str) -> None:
    """Plain lines, as they are; printed by the first process alone under torchrun and srun."""
    for line in lines if rank_from_outside() == 0 else ():
        show(console, line)


def command(*words: object, note: str = "") -> str:
    """A command line to paste into a shell: every word quoted where it needs it, no passwords."""
    text = [shown(str(word)) for word in words]
    # A path that begins with a hyphen would be a flag.
    paths = [isinstance(word, Path) and str(word).startswith("-") for word in words]
    text = [f"./{word}" if path else word for word, path in zip(text, paths, strict=True)]
    return f"  {shlex.join([program(), *text])}" + (f"    # {note}" if note else "")


def program() -> str:
    """How the user can call this command again."""
    if shutil.which("lewel"):
        return "lewel"
    script, here = Path(sys.executable).parent / "lewel", Path.cwd()
    return str(script.relative_to(here) if script.is_relative_to(here) else script)


def show_accuracy(console: Console, found: "Accuracy", *details: str) -> None:
    """The result of knn, linear or finetune, its file, and the next command."""
    low, high = found.interval
    numbers = f"top-1 {found.top1:.1%} (95 % {low:.1%} - {high:.1%}), top-5 {found.top5:.1%}"
    say(
        console,
        ", ".join(
            (f"{found.task} on {found.data}: {numbers}", f"{found.images:,} images", *details)
        ),
        *where_and_next(found.file),
    )


def saved(found: "Evaluated") -> list[str]:
    """Where all predictions are, if they were kept."""
    kept = found.numbers.get("predictions")
    return [f"wrote all predictions to {found.file.parent.parent / kept}"] if kept else []


def show_dense_plan(config: "DenseConfig", describe: Callable[[], dict[str, Any]]) -> None:
    """The settings of an evaluation as YAML, and what it would take."""
    import yaml

    with plain_console(stderr=True).status("timing a few steps"):
        description = describe()
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).rstrip())
    for name, value in description.items():
        print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}")


def where_and_next(file: Path) -> list[str]:
    """Where a result is cached, and what comes next."""
    return [f"wrote {file}", "next:", command("results", file.parent.parent)]
