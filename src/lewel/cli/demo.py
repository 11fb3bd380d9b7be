"""`lewel demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.panel import Panel
from rich.table import Table

from lewel.cli.output import command, say
from lewel.cli.parameters import Whole
from lewel.progress import plain_console, wide

if TYPE_CHECKING:
    from lewel.tasks.demo import Demonstrated

OUT = Path("runs/demo")


def demo(
    *,
    out: Annotated[Path, Parameter(help="The run folder.")] = OUT,
    seed: Annotated[Whole, Parameter(help="Another seed is another run.")] = 0,
) -> None:
    """Pre-train on the embedded images, evaluate and report: minutes on two CPU cores."""
    from lewel.tasks import demo as task

    console = plain_console()
    done = task.demo(out, seed, console)
    wide(console, 110).print(summary(done))
    mine = "runs/photos"
    if not done.new:
        say(console, f"All of it was done before; delete {out} to run it again.")
    say(
        console,
        f"report: {done.page} (open it in a browser)",
        "next, on your own images:",
        command("pretrain", "photos/", "--budget", "1h", "--out", mine, note="chooses settings"),
        command("knn", mine, "--data", "labelled/", note="accuracy on class folders"),
        command("report", mine, note="neighbours, maps, losses on one page"),
    )


def summary(done: "Demonstrated") -> Panel:
    """Before and after, as a table of bars."""
    labels = done.pretrained.numbers["labelled"]
    rows = {
        "k-NN accuracy, no labels used in training": (done.run.knn_before, done.run.knn),
        f"fine-tuned with {labels} labels": (done.scratch.top1, done.pretrained.top1),
    }
    table = Table(box=None, pad_edge=False)
    for column in ("", "randomly initialised", "pre-trained"):
        table.add_column(column)
    for name, (before, after) in rows.items():
        table.add_row(name, bar(before), bar(after))
    return Panel(table, title="lewel demo", expand=False)


def bar(share: float | None) -> str:
    """A share as text and as a bar of twenty cells."""
    if share is None:
        return "-"
    return f"{share:6.1%} " + "█" * round(20 * share) + "░" * (20 - round(20 * share))
