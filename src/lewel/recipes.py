"""The recipes that ship with lewel: YAML files whose comments state what they give."""

from pathlib import Path
from typing import Any

from lewel.config import read_yaml
from lewel.errors import UserError


def recipe_folder() -> Path:
    """Where the recipes are: inside an installed wheel, or at the top of a checkout."""
    here = Path(__file__).parent
    shipped = here / "recipes"
    return shipped if shipped.is_dir() else here.parents[1] / "recipes"


def list_recipes(kind: str = "pretrain") -> dict[str, str]:
    """Name -> first comment line of each recipe for pre-training, or for judging ("eval")."""
    out = {}
    for path in sorted((recipe_folder() / kind).glob("*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        out[path.stem] = first.lstrip("# ")
    return out


def paper_numbers() -> dict[str, dict[str, dict[str, Any]]]:
    """Recipe -> task -> the paper's numbers by name, and where they stand."""
    return read_yaml(recipe_folder() / "paper.yaml")


def default_recipe(method: str) -> dict[str, Any]:
    """What a method is by default: the paper's, in 32 bits so that it runs on any device."""
    return {**read_recipe(f"imagenet_{method}_100ep"), "precision": "32"}


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
