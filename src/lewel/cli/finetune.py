"""`lewel finetune`."""

from typing import Annotated

from lewel.cli.output import show_accuracy
from lewel.cli.parameters import All, Backbone, Recipe, ResultsFolder, with_recipe
from lewel.config.evaluate import FinetuneConfig
from lewel.progress import plain_console

Config = Annotated[FinetuneConfig, All]


def finetune(
    backbone: Backbone, /, *, recipe: Recipe = None, out: ResultsFolder = None, config: Config
) -> None:
    """Fine-tune on a fraction of the labels (semi-supervised evaluation)."""
    from lewel.tasks import finetune as task

    console = plain_console()
    found = task.finetune(backbone, with_recipe(config, recipe), out, console)
    show_accuracy(console, found, f"{found.numbers['labelled']:,} labels")
