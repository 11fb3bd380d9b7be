"""`lewel results`."""

from pathlib import Path

from rich.console import Console

from lewel.cli.output import wide
from lewel.errors import UserError


def results(*runs: Path) -> None:
    """Compare the results of one or several runs."""
    from lewel.tasks.results import results_table

    if not runs:
        raise UserError("Which runs? Give one or several run folders.")
    wide(Console(), 200).print(results_table(list(runs)))
