"""The paper's tables and figures as experiments: recipes/reproduce/*.yaml, checked."""

from collections.abc import Iterable
from functools import cache
from typing import Any, Literal

from pydantic import Field, model_validator

from lewel.config.recipes import recipe_folder
from lewel.config.settings import Settings, read_yaml
from lewel.errors import UserError

Value = bool | int | float | str | list[float]
Dotted = dict[str, Value]  # settings by their dotted keys
ScaleName = Literal["paper", "small", "minutes"]
Kind = Literal["pretrained", "random_init", "supervised", "step_times"]


class Measurement(Settings):
    """An evaluation as it is done at a scale."""

    title: str
    task: Literal["knn", "linear", "finetune", "segment", "detect", "where"]
    data: str = Field(description="A name or a path; {root} is --data-root.")
    recipe: str | dict[str, str] | None = Field(
        None, description="A recipe in recipes/eval, or one for each method of pre-training."
    )
    settings: Dotted = Field({}, description="By dotted keys.")
    supervised: Dotted | None = Field(
        None, description="For the supervised control, if it has one."
    )
    metric: str = Field(description="Which number of the result counts, by its dotted key.")
    also: dict[str, str] = Field(
        {}, description="Other numbers that are shown: the paper's name, and the dotted key."
    )


class Scale(Settings):
    """How large the experiments are."""

    title: str
    data: str
    needs: str
    recipes: dict[str, dict[str, str]] = Field(description="By base and method.")
    settings: Dotted = Field({}, description="By dotted keys.")
    evaluations: dict[str, Measurement]
    bench: Dotted = Field({}, description="Of `lewel bench step`, for the step times.")

    def canonical(self, evaluation: str) -> str:
        """The first name of an evaluation: those that are the same at this scale are done once."""
        wanted = self.evaluations[evaluation]
        same = (n for n, m in self.evaluations.items() if m == wanted)
        return next(same)


class Row(Settings):
    """One kind of backbone in an experiment."""

    name: str
    method: str
    settings: Dotted = Field({}, description="By dotted keys.")
    kind: Kind = "pretrained"
    control: bool = Field(False, description="Beyond the paper.")
    baseline: str | None = Field(None, description="The row that it is compared with.")
    at: dict[ScaleName, Dotted] = Field({}, description="Settings at a scale, in place of these.")
    x: float | None = Field(None, description="Its place on the axis of a figure.")
    recipes: dict[ScaleName, str] = Field({}, description="In place of the scale's.")
    scales: list[ScaleName] | None = Field(None, description="Only at these.")


class Claim(Settings):
    """An ordering that the paper states."""

    better: str
    worse: str
    evaluations: list[str] | None = Field(None, description="Only by these.")


class Experiment(Settings):
    """A table or a figure."""

    title: str
    base: str = Field("imagenet", description="Which of the scale's recipes are meant.")
    paper: int | None = Field(None, description="The number of the paper's table.")
    axis: str | None = Field(None, description="What a figure varies.")
    evaluations: list[str] = Field([], description="Those that a scale has are done.")
    rows: list[Row] = Field([], description="Backbones.")
    claims: list[Claim] = Field([], description="The paper's orderings.")
    shows: Literal["numbers", "maps", "step times"] = "numbers"
    in_all: bool = Field(True, description="Whether `all` includes it.")

    @model_validator(mode="after")
    def _names_are_known(self) -> "Experiment":
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise ValueError("two rows have the same name")
        used = {row.baseline for row in self.rows if row.baseline is not None}
        used |= {name for claim in self.claims for name in (claim.better, claim.worse)}
        if unknown := used - set(names):
            raise ValueError(f"unknown rows {sorted(unknown)}")
        measured = {name for claim in self.claims for name in claim.evaluations or []}
        if unknown := measured - set(self.evaluations):
            raise ValueError(f"unknown evaluations {sorted(unknown)}")
        return self

    def rows_at(self, scale: ScaleName) -> list[Row]:
        """The rows of a scale."""
        return [row for row in self.rows if row.scales is None or scale in row.scales]


@cache
def read_scales() -> dict[ScaleName, Scale]:
    """The three scales."""
    content = read_yaml(recipe_folder() / "reproduce" / "scales.yaml")
    return {name: Scale.model_validate(value) for name, value in content.items()}  # type: ignore[misc]


@cache
def read_experiments() -> dict[str, Experiment]:
    """Every experiment by its name, in the paper's order."""
    folder = recipe_folder() / "reproduce"
    files = [path for path in folder.glob("*.yaml") if path.stem != "scales"]
    order = sorted(files, key=lambda path: (not path.stem.startswith("table"), path.stem))
    return {path.stem: Experiment.model_validate(read_yaml(path)) for path in order}


def choose_experiments(names: list[str]) -> dict[str, Experiment]:
    """Experiments by their names; `all`, or none, is every one but those left to be named."""
    known = read_experiments()
    if unknown := [name for name in names if name not in known and name != "all"]:
        raise UserError(f"There is no {unknown[0]!r}: choose from {', '.join(known)}, or all.")
    every = not names or "all" in names
    return {name: one for name, one in known.items() if name in names or (every and one.in_all)}


def leave_out(chosen: dict[str, Experiment], skipped: Iterable[str]) -> dict[str, Experiment]:
    """The experiments without some of their evaluations."""
    names = sorted({name for one in chosen.values() for name in one.evaluations})
    if unknown := [name for name in skipped if name not in names]:
        only = f"only {', '.join(names)}" if names else "these experiments have none"
        raise UserError(f"--skip {unknown[0]}: no such evaluation here, {only}.")
    left = ([name for name in one.evaluations if name not in skipped] for one in chosen.values())
    return {
        name: one.model_copy(update={"evaluations": some})
        for (name, one), some in zip(chosen.items(), left, strict=True)
    }


def flags(settings: dict[str, Any]) -> list[str]:
    """Dotted settings as words of a command line."""
    words: list[str] = []
    for key, value in settings.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, bool):
            head, _, last = flag.rpartition(".")
            negative = f"{head}.no-{last}" if head else f"--no-{flag[2:]}"
            words.append(flag if value else negative)
        else:
            values = value if isinstance(value, list) else [value]
            words += [flag, *(f"{one:g}" if isinstance(one, float) else str(one) for one in values)]
    return words
