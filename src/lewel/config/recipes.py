"""The recipes that ship with lewel: YAML files whose comments state what they give."""

from pathlib import Path
from typing import Any

from lewel.config.settings import read_yaml
from lewel.errors import UserError


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

    A method without such a recipe has the defaults of `PretrainConfig`.
    """
    name = f"imagenet_{method}_100ep"
    shipped = read_recipe(name) if name in list_recipes() else {"method": method}
    return {**shipped, "precision": "auto"}


def read_recipe(name: str, kind: str = "pretrain") -> dict[str, Any]:
    """A shipped recipe by its name, or any YAML file."""
    shipped = recipe_folder() / kind / f"{name}.yaml"
    if shipped.is_file():
        return read_yaml(shipped)
    path = Path(name)
    if path.is_file():
        return read_yaml(path)
    if path.suffix in {".yaml", ".yml"}:
        raise UserError(f"The recipe file {name} does not exist.")
    raise UserError(
        f"There is no recipe {name!r}: expected one of {', '.join(list_recipes(kind))}, or a YAML "
        "file."
    )
