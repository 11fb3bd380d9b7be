"""`lewel recipes`."""

from rich.table import Table

from lewel.progress import plain_console


def recipes() -> None:
    """List the recipes that ship with lewel."""
    from lewel.config.recipes import list_recipes

    table = Table("recipe", "what it is", box=None)
    for kind in ("pretrain", "eval"):
        for name, about in list_recipes(kind).items():
            table.add_row(name, about)
    plain_console().print(table)
