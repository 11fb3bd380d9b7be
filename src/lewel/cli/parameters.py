"""Parameters that several commands take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter, Token
from cyclopts.validators import Number
from pydantic import ValidationError

from lewel.config.evaluate import CONFIGS, EvaluateConfig
from lewel.config.settings import explain
from lewel.errors import UserError


def _whole(kind: type, tokens: Sequence[Token]) -> int:
    """A whole number; cyclopts itself would cut 1.5 to 1."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is no whole number") from None


Integer = Annotated[int, Parameter(converter=_whole)]
Whole = Annotated[Integer, Parameter(validator=Number(gte=0))]
Positive = Annotated[Integer, Parameter(validator=Number(gte=1))]
Flag = Annotated[bool, Parameter(negative=())]
Backbone = Annotated[
    str, Parameter(help="A run folder, a file of weights, or a network's name (timm/NAME).")
]
Run = Annotated[Path, Parameter(help="A run folder.")]
ResultsFolder = Annotated[
    Path | None, Parameter(help="Where results go; by default the run folder.")
]
Recipe = Annotated[
    str | None, Parameter(help="A recipe by name (`lewel recipes`) or a YAML file; flags override.")
]
DryRun = Annotated[
    bool,
    Parameter(negative=(), help="Print settings and time of the evaluation; train nothing."),
]
All = Parameter(name="*")  # every setting of a model is a flag
Config = TypeVar("Config", bound=EvaluateConfig)


def with_recipe(config: Config, recipe: str | None) -> Config:
    """A recipe for an evaluation, then the user's flags on top of it."""
    if recipe is None:
        return config
    from lewel.config.recipes import command_recipe

    given = config.model_dump(exclude_unset=True)
    command = next(name for name, model in CONFIGS.items() if model is type(config))
    try:
        return type(config).model_validate({**command_recipe(command, recipe), **given})
    except ValidationError as error:
        raise UserError(explain(error, type(config))) from None
