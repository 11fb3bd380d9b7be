"""Commands that show a run: report writes a page, watch serves it while the run trains."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from lewel.errors import UserError


def report(
    *runs: Path,
    out: Annotated[
        Path | None, Parameter(help="The page; by default report.html in the run folder.")
    ] = None,
) -> None:
    """Write one page, one HTML file, about a run or about several side by side."""
    from lewel.reporting import write_report

    if not runs:
        raise UserError("Which runs? Give one or several run folders.")
    console = Console()
    with console.status("reading the run"):
        path = write_report(list(runs), out)
    for line in (
        f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)",
        "next: open it in a browser, or see results and a running training:",
        f"  lewel results {' '.join(map(str, runs))}",
        f"  lewel watch {runs[0]}",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def watch(run: Path, /, *, port: int = 0, every: int = 5) -> None:
    """Show the page of a run while it trains, to browsers on this machine.

    Parameters
    ----------
    run
        A run folder, or where one will be.
    port
        Where the page is served; by default a free one.
    every
        Seconds after which the page looks again.
    """
    from lewel.watching import LivePage, Server

    if run.exists() and not run.is_dir():
        raise UserError(f"{run} is a file, expected a run folder.")
    if every < 1:
        raise UserError(f"--every is {every}: expected seconds, 1 or more.")
    console = Console()
    with Server(LivePage(run, every), port) as server:
        if not run.exists():
            console.print(f"{run} does not exist yet: waiting for it.", soft_wrap=True)
        console.print(
            f"watching {run} at {server.url} (Ctrl-C ends it)",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print()
