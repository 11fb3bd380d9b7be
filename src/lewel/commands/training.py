"""Commands that train: pretrain, and the recipes to train by."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from lewel.config import PretrainConfig


def pretrain(
    data: str | None = None,
    /,
    *,
    recipe: str | None = None,
    out: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    config: Annotated[PretrainConfig, Parameter(name="*")] = PretrainConfig(),  # noqa: B008
) -> None:
    """Train a backbone on images without labels; the same command again goes on.

    Parameters
    ----------
    data
        A folder of images, a text file of paths, a CSV with path and label, a data set's name
        (cifar10, stl10, food101, imagenet, ...), `scenes`, or packed data (`lewel pack`), also by
        its URL.
    recipe
        A recipe by name (`lewel recipes`) or a YAML file; flags override it.
    out
        The run folder; by default runs/DATA-METHOD.
    dry_run
        Show the resolved configuration and what the run would be, and stop.
    """
    from lewel import api

    given = config.model_dump(exclude_unset=True)
    console = Console()
    if not dry_run:
        api.pretrain(data, recipe=recipe, out=out, console=console, **given)
        return
    resolved = api.configure(data, recipe, given)
    import yaml

    print(yaml.safe_dump(resolved.model_dump(mode="json"), sort_keys=False).rstrip())
    with Console(stderr=True).status("timing a few steps"):
        description = api.describe(resolved)
    for name, value in description.items():
        kind = "," if isinstance(value, int) else "g" if isinstance(value, float) else ""
        print(f"{name}: {value:{kind}}")


def recipes() -> None:
    """List the recipes that ship with lewel."""
    from lewel.recipes import list_recipes

    table = Table("recipe", "what it is", box=None)
    for kind in ("pretrain", "eval"):
        for name, about in list_recipes(kind).items():
            table.add_row(name, about)
    Console().print(table)
