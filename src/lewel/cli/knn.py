"""`lewel knn`."""

from typing import Annotated

from lewel.cli.output import show_accuracy
from lewel.cli.parameters import All, Backbone, ResultsFolder
from lewel.config.evaluate import KnnConfig
from lewel.progress import plain_console


def knn(
    backbone: Backbone, /, *, out: ResultsFolder = None, config: Annotated[KnnConfig, All]
) -> None:
    """Evaluate a backbone by k nearest neighbours."""
    from lewel.tasks import knn as task

    console = plain_console()
    found = task.knn(backbone, config, out, console)
    by_k = ", ".join(f"{k}: {value:.1%}" for k, value in found.numbers["sweep"].items())
    bank = f"bank {found.numbers['bank']:,}; by k {by_k}"
    show_accuracy(console, found, f"k = {found.numbers['k']}", bank)
