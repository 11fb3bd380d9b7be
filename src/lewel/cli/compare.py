"""`lewel compare`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from lewel.cli.output import command, say
from lewel.cli.parameters import Flag, Positive
from lewel.data.pack.urls import shown
from lewel.data.workers import cores
from lewel.errors import RunError
from lewel.progress import plain_console, wide


def compare(
    data: str,
    /,
    *,
    methods: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    budget: str = "5m",
    seeds: Positive = 1,
    jobs: Positive | None = None,
    out: Path | None = None,
    list: Flag = False,
) -> None:
    """Compare methods on the same images, each trained for the same time; resumes.

    Parameters
    ----------
    data
        `scenes`, or a folder with train/ and val/ of class folders.
    methods
        Names of methods, or all.
    budget
        Time that each method trains on one core, such as 5m or 2h; evaluations come on top.
    seeds
        Number of seeds (0, 1, ...); a higher number later adds seeds.
    jobs
        Runs at a time, one thread each; by default one for each core.
    out
        The folder of all runs, results and pages; by default runs/compare-DATA.
    list
        Show what is done and how long the rest takes, and stop.
    """
    from lewel.cli.reproduce import show_state
    from lewel.pages.reproduction import write_pages
    from lewel.tasks.auto import parse_budget
    from lewel.tasks.compare import compare as task
    from lewel.tasks.reproduce import Worker
    from lewel.tasks.reproduction_folder import claimed, refuse_other_settings
    from lewel.tasks.reproduction_plan import plan

    console = plain_console()
    folder = out or Path("runs") / f"compare-{Path(shown(data)).name or 'data'}"
    planned = task(
        data, methods or [], parse_budget(budget), folder, lambda text: say(console, text)
    )
    queue = plan({"compare": planned.experiment}, planned.setup, range(seeds))
    many = jobs or cores()
    if list:
        show_state(console, queue, many)
        return
    say(console, f"{len(planned.shares)} methods, {len(queue)} runs, {budget} each on one core.")
    refuse_other_settings(queue)
    with claimed(folder, lambda text: say(console, text)) as lock:
        failed = Worker(many, lambda text: say(console, text), lock).work(queue)
    tables = planned.shown(seeds)
    pages = write_pages([tables], planned.setup.scale.title, folder / "pages", "Comparison")
    table = Table(box=None, pad_edge=False)
    for column in ("", *tables.columns):
        table.add_column(column, no_wrap=True)
    for row in tables.rows:
        table.add_row(Text(row.label), *(Text(cell.text()) for cell in row.cells))
    wide(console, 200).print(table)
    say(console, *(f"wrote {path}" for path in pages))
    if failed:
        raise RunError(
            f"{failed} part{'s' * (failed > 1)} failed: see *.log in {folder / 'backbones'}."
        )
    same = ("--methods", *methods) if methods else ()
    again = ("compare", data, *same, "--budget", budget, "--seeds", seeds + 2, "--out", folder)
    say(console, "next:", command(*again, note="more seeds: single short runs differ by chance"))
