"""`lewel results`."""

from pathlib import Path

from lewel.errors import UserError
from lewel.progress import plain_console, wide


def results(*runs: Path) -> None:
    """Compare the results of one or several runs."""
    from lewel.tasks.results import results_table

    if not runs:
        raise UserError("Which runs? Give one or several run folders.")
    wide(plain_console(), 200).print(results_table(list(runs)))
