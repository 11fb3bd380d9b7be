"""The recipes that ship with lewel: YAML files whose comments state what they give."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lewel.config.settings import Settings, read_yaml
from lewel.errors import UserError, state_of
from lewel.files import user_path


def recipe_folder() -> Path:
    """Where the recipes are: inside an installed wheel, or at the top of a checkout."""
    package = Path(__file__).parents[1]
    shipped = package / "recipes"
    return shipped if shipped.is_dir() else package.parents[1] / "recipes"


def list_recipes(kind: str = "pretrain") -> dict[str, str]:
    """Name -> first comment line of each recipe for pre-training, or for evaluation ("eval")."""
    out = {}
    for path in sorted((recipe_folder() / kind).glob("*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        out[path.stem] = first.lstrip("# ")
    return out


def default_recipe(method: str) -> dict[str, Any]:
    """The default settings of a method: the paper's, in a precision that runs on any device.

    Those for 100 epochs, or for 200 where its authors have no others. A method without such a
    recipe has the defaults of `PretrainConfig`.
    """
    known = list_recipes()
    names = [f"imagenet_{method}_{epochs}ep" for epochs in (100, 200)]
    name = next((one for one in names if one in known), None)
    shipped = {"method": method} if name is None else read_recipe(name)
    return {**shipped, "precision": "auto"}


def command_recipe(command: str, name: str) -> dict[str, Any]:
    """A recipe for a command; UserError for one that is another command's."""
    kind = "pretrain" if command == "pretrain" else "eval"
    other = "eval" if kind == "pretrain" else "pretrain"
    shipped = recipe_folder() / other / f"{name}.yaml"
    owners = owners_of(other, name, read_yaml(shipped)) if shipped.is_file() else []
    if not owners:
        recipe = read_recipe(name, kind)
        owners = owners_of(kind, name, recipe)
        if not owners or command in owners:
            return recipe
    raise UserError(
        f"{name} is a recipe for `lewel {' or '.join(owners)}`, not for `lewel {command}`: "
        "`lewel recipes` lists all."
    )


def owners_of(kind: str, name: str, recipe: dict[str, Any]) -> list[str]:
    """The commands that a recipe is for: by its name if it is shipped, else by its keys."""
    from lewel.config.evaluate import CONFIGS
    from lewel.config.pretrain import PretrainConfig

    models: dict[str, type[Settings]] = {"pretrain": PretrainConfig, **CONFIGS}
    prefix = name.partition("_")[0]
    if prefix in CONFIGS and name in list_recipes(kind):
        return [prefix]
    return [own for own, model in models.items() if recipe.keys() <= model.model_fields.keys()]


def read_recipe(name: str, kind: str = "pretrain") -> dict[str, Any]:
    """A shipped recipe by its name, or any YAML file."""
    shipped = recipe_folder() / kind / f"{name}.yaml"
    if shipped.is_file():
        return read_yaml(shipped)
    path = user_path(name)
    if path.is_file():
        return read_yaml(path)
    if path.suffix in {".yaml", ".yml"} or os.path.lexists(path):
        raise UserError(f"The recipe {name} {state_of(path)}: expected a YAML file.")
    close = get_close_matches(name, list_recipes(kind), n=3)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise UserError(
        f"There is no recipe {name!r}: expected one that `lewel recipes` lists, or a YAML "
        f"file.{hint}"
    )
