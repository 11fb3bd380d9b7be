"""`lewel linear`."""

from typing import Annotated

from lewel.cli.output import show_accuracy
from lewel.cli.parameters import All, Backbone, Recipe, ResultsFolder, with_recipe
from lewel.config.evaluate import LinearConfig
from lewel.progress import plain_console

Config = Annotated[LinearConfig, All]


def linear(
    backbone: Backbone, /, *, recipe: Recipe = None, out: ResultsFolder = None, config: Config
) -> None:
    """Evaluate a backbone by a linear classifier on frozen features."""
    from lewel.tasks import linear as task

    console, config = plain_console(), with_recipe(config, recipe)
    found = task.linear(backbone, config, out, console)
    chosen = ("lr", "weight_decay") if config.fast else ()
    named = [f"{name.replace('_', ' ')} {found.numbers[name]:g}" for name in chosen]
    show_accuracy(console, found, *named)
