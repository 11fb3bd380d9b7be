"""`lewel export`."""

from pathlib import Path
from typing import Annotated

from lewel.cli.output import say
from lewel.cli.parameters import All, Backbone
from lewel.config.commands import ExportConfig
from lewel.progress import plain_console


def export(
    run: Backbone, /, *, out: Path | None = None, config: Annotated[ExportConfig, All]
) -> None:
    """Export a backbone to another project's format; it is loaded back and compared.

    Parameters
    ----------
    out
        A file or a folder; by default export/ in the run folder.
    """
    from lewel.tasks import export as task

    with plain_console(stderr=True).status(f"exporting to {config.to}"):
        done = task.export(run, config, out)
    say(
        plain_console(),
        f"wrote {', '.join(map(str, done.files))}: {done.compared}",
        *done.notes,
        "load it:",
        *(f"  {line}" for line in done.loading),
    )
