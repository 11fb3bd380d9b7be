"""The paper's tables as data: recipes/paper.yaml, checked."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from lewel.config.recipes import recipe_folder
from lewel.config.settings import Settings, merge, read_yaml

TRAINED = ("MoCo v2", "BYOL", "LEWEL_M", "LEWEL_B")  # systems that the paper's authors trained


class DataSet(Settings):
    """How many images and classes a data set has."""

    training: int
    validation: int
    classes: int | None = None


class Evaluation(Settings):
    """What some columns of the tables measure, and our recipe for it."""

    title: str
    metrics: list[str]
    unit: Literal["percent", "seconds"] = "percent"
    task: Literal["linear", "finetune", "segment", "detect"] | None = None
    data: str | None = None
    recipe: str | dict[str, str] | None = Field(
        None, description="A recipe in recipes/eval, or one for each method of pre-training."
    )
    searched: list[float] = Field([], description="Learning rates of which any may be used.")
    free: list[str] = Field([], description="Settings that may have any value.")
    labelled: int | None = Field(None, description="Images of a list of labelled images.")

    def recipe_for(self, method: str) -> str | None:
        """The recipe for a backbone that a method has trained; None where there is none."""
        return self.recipe.get(method) if isinstance(self.recipe, dict) else self.recipe


class Row(Settings):
    """A pre-trained backbone and its numbers, by evaluation."""

    system: str
    epochs: int | None = None
    dagger: bool = Field(False, description="Cited from another paper.")
    reproduced: bool = Field(False, description="The authors' own run of another system.")
    variant: dict[str, bool | int | str | None] = Field({}, description="Of an ablation.")
    recipe: str | None = Field(None, description="Ours in recipes/pretrain that trains the row.")
    settings: dict[str, int | float | str] = Field(
        {}, description="Dotted settings over the recipe."
    )
    numbers: dict[str, list[float | None]]

    @property
    def cited(self) -> bool:
        """Whether the numbers of a row with a recipe are another paper's, by another protocol."""
        return self.dagger or self.system not in TRAINED

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings as nested dictionaries, as `resolve` takes them."""
        out: dict[str, Any] = {}
        for key, value in self.settings.items():
            nested: Any = value
            for part in reversed(key.split(".")):
                nested = {part: nested}
            out = merge(out, nested)
        return out


class Table(Settings):
    """A table; its columns are evaluations."""

    table: int
    caption: str
    pretrained_on: str
    columns: list[str]
    rows: list[Row]


class Cell(NamedTuple):
    """One number of a table."""

    table: int
    row: Row
    evaluation: str
    metric: str
    value: float


class Paper(Settings):
    """All tables, with the data sets and evaluations that they name."""

    data: dict[str, DataSet]
    evaluations: dict[str, Evaluation]
    tables: list[Table]

    @model_validator(mode="after")
    def _names_are_known(self) -> "Paper":
        used = {one.data for one in self.evaluations.values() if one.data is not None}
        used |= {table.pretrained_on for table in self.tables}
        if unknown := used - self.data.keys():
            raise ValueError(f"unknown data sets {sorted(unknown)}")
        for table in self.tables:
            for row in table.rows:
                for name, values in row.numbers.items():
                    metrics = self.evaluations[name].metrics if name in table.columns else []
                    if len(values) != len(metrics):
                        raise ValueError(
                            f"table {table.table}, {row.system}: {len(values)} numbers of {name}, "
                            f"expected {len(metrics)}"
                        )
        return self

    def numbers(self, row: Row, evaluation: str) -> dict[str, float]:
        """Metric -> number of a row, without the dashes."""
        metrics, values = self.evaluations[evaluation].metrics, row.numbers[evaluation]
        return {
            metric: value
            for metric, value in zip(metrics, values, strict=True)
            if value is not None
        }

    def cells(self) -> Iterator[Cell]:
        """Every number, table by table and row by row."""
        for table in self.tables:
            for row in table.rows:
                for name in row.numbers:
                    for metric, value in self.numbers(row, name).items():
                        yield Cell(table.table, row, name, metric, value)


@cache
def read_paper() -> Paper:
    """The paper's tables."""
    return Paper.model_validate(read_yaml(recipe_folder() / "paper.yaml"))
