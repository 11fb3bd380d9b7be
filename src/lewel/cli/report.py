"""`lewel report`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lewel.cli.output import command, say
from lewel.cli.parameters import Flag
from lewel.config.commands import OVERWRITE
from lewel.progress import plain_console


def report(
    *runs: Path,
    out: Annotated[
        Path | None, Parameter(help="The page; by default report.html in the run folder.")
    ] = None,
    overwrite: Annotated[Flag, Parameter(help=OVERWRITE)] = False,
) -> None:
    """Write a report of one or several runs as one self-contained HTML page."""
    from lewel.tasks import report as task

    console = plain_console()
    with console.status("reading the run"):
        path = task.report(list(runs), out, overwrite=overwrite)
    say(
        console,
        f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)",
        "next: open it in a browser, or see results and a running training:",
        command("results", *runs),
        command("watch", runs[0]),
    )
