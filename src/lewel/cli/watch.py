"""`lewel watch`."""

from lewel.cli.output import say
from lewel.cli.parameters import Integer, Run
from lewel.errors import UserError
from lewel.progress import plain_console


def watch(run: Run, /, *, port: Integer = 0, every: Integer = 5) -> None:
    """Serve the report of a run while it trains, on this machine only.

    Parameters
    ----------
    port
        Where the page is served; by default a free one.
    every
        Seconds between two updates of the page.
    """
    from lewel.tasks.watch import LivePage, Server

    if run.exists() and not run.is_dir():
        raise UserError(f"{run} is a file, expected a run folder.")
    if every < 1:
        raise UserError(f"--every is {every}: expected seconds, 1 or more.")
    console = plain_console()
    with Server(LivePage(run, every), port) as server:
        if not run.exists():
            say(console, f"{run} does not exist yet: waiting for it.")
        say(console, f"watching {run} at {server.url} (Ctrl-C stops it)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print()
