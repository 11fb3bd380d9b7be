"""References of recipes: recipes/reference, and which of them belongs to a run."""

import hashlib
import json
from typing import Any

import numpy as np
from pydantic import Field

from lewel.config.identity import FREE, follows
from lewel.config.pretrain import PretrainConfig
from lewel.config.recipes import read_recipe, recipe_folder
from lewel.config.resolve import resolve
from lewel.config.settings import Settings, read_yaml
from lewel.pages.reference import Reference

Row = tuple[float, float, float, float]  # epoch, mean, lowest, highest
METRICS = ("loss", "embedding_std", "knn")


class ReferenceFile(Settings):
    """A file in recipes/reference, named after its recipe."""

    source: str = Field(description="Whose runs these are.")
    images: int = Field(description="Of the data that they were trained on.")
    batch_size: int | None = Field(None, description="Theirs, where it is not the recipe's.")
    settings: str = Field(description="Digest of the recipe's settings at that time.")
    width: float = Field(gt=0, description="Epochs that a row of loss or embedding std covers.")
    compared: tuple[str, ...] = Field(METRICS, description="The others are only drawn.")
    loss: tuple[Row, ...] = ()
    embedding_std: tuple[Row, ...] = ()
    knn: tuple[Row, ...] = ()


def find_reference(config: PretrainConfig, card: dict[str, Any]) -> Reference | None:
    """The reference of the recipe that a run follows, on as many images."""
    for name in list_references():
        recipe, file = read_recipe(name), read_reference(name)
        if file.images == card.get("images") and any(
            follows(config, recipe, one) for one in same_settings(recipe, file.batch_size)
        ):
            probe = resolve(recipe, {"data": "", "knn": {"every": config.knn.every}}).knn
            return as_reference(name, file, probe == config.knn)
    return None


def same_settings(recipe: dict[str, Any], batch_size: int | None) -> list[dict[str, Any]]:
    """None, and two ways to give a reference's own batch size: the rate scaled by us, or given."""
    if batch_size is None:
        return [{}]
    rate = recipe["optim"]["lr"] * batch_size / recipe["batch_size"]
    scaled = {"lr": rate, "lr_batch_size": batch_size}
    return [{}, {"batch_size": batch_size}, {"batch_size": batch_size, "optim": scaled}]


def list_references() -> list[str]:
    """The recipes that have a reference."""
    return sorted(path.stem for path in (recipe_folder() / "reference").glob("*.yaml"))


def read_reference(recipe: str) -> ReferenceFile:
    """The reference of a recipe."""
    path = recipe_folder() / "reference" / f"{recipe}.yaml"
    return ReferenceFile.model_validate(read_yaml(path))


def as_reference(recipe: str, file: ReferenceFile, same_probe: bool = True) -> Reference:
    """A file as arrays; k-NN accuracies of another bank are left out."""
    rows = {key: getattr(file, key) for key in METRICS if same_probe or key != "knn"}
    curves = {key: np.array(value, dtype=np.float64) for key, value in rows.items() if value}
    return Reference(recipe, file.source, file.width, curves, frozenset(file.compared))


def settings_digest(recipe: str) -> str:
    """Changes when a setting of the recipe changes: its reference must then be recorded again."""
    settings = {key: value for key, value in read_recipe(recipe).items() if key not in FREE}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
