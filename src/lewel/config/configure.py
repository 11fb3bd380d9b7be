"""From a recipe and the user's settings to the checked configuration of a run."""

import os
from typing import Any

from lewel.config.methods import (
    constructor_defaults,
    refuse_unused,
    refuse_unused_in,
    typed_options,
    without_unused,
)
from lewel.config.pretrain import PretrainConfig
from lewel.config.recipes import command_recipe, default_recipe
from lewel.config.resolve import resolve
from lewel.data.sources.named import NAMES
from lewel.errors import UserError
from lewel.files import user_path
from lewel.interop.published import find_published
from lewel.methods.registry import find_method, method_names


def configure(
    data: str | None, recipe: str | dict[str, Any] | None, overrides: dict[str, Any]
) -> PretrainConfig:
    """The checked configuration of a run, its data path made absolute.

    A recipe is a name, a file, or settings; `paper` and None are the paper's for the method.
    """
    name = str(overrides.get("method", "lewel_b"))
    known = name in method_names()  # another is refused below, with the names of these
    if recipe is None or recipe == "paper":
        given = default_recipe(name) if known else {}
    else:
        given = command_recipe("pretrain", recipe) if isinstance(recipe, str) else recipe
    shipped = isinstance(recipe, str) and recipe != "paper"
    if known and not shipped and "head" not in given:  # the constructor's sizes
        given = {**constructor_defaults(find_method(name)), **given}
    if data == "":
        raise UserError("The data is an empty name: write . for the current folder.")
    if data is not None:
        overrides = {**overrides, "data": str(data)}
    elif "data" not in given:
        raise UserError(
            "What are the images? Give a folder, a list file, a data set's name, or `scenes`."
        )
    config = resolve(given, overrides)
    method = find_method(config.method)
    refuse_unused(method, overrides)
    if given.get("method", config.method) == config.method:
        refuse_unused_in(given, method)
    config = typed_options(without_unused(config))
    path = user_path(config.data)
    if config.data != "scenes" and config.data not in NAMES and path.exists():
        config = config.model_copy(update={"data": str(path.resolve())})
    for key in ("classes", "init"):  # so that config.yaml holds wherever it is used
        if (value := getattr(config, key)) is not None and not find_published(value):
            config = config.model_copy(update={key: os.path.realpath(user_path(value))})
    return config
