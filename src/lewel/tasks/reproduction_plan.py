"""What `lewel reproduce` has to do: backbones, each with the evaluations that experiments need.

A backbone is one pre-training with one seed. Equal backbones of several experiments are one folder.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from lewel.config.reproduce import (
    Dotted,
    Experiment,
    Kind,
    Row,
    Scale,
    ScaleName,
    flags,
    read_scales,
)
from lewel.errors import RunError, UserError
from lewel.tasks.reproduction_numbers import Known, Numbers, digest


@dataclass(frozen=True)
class Setup:
    """Where and how large the experiments are done."""

    scale_name: ScaleName
    out: Path
    root: Path  # of the data
    own: Scale | None = None  # of `lewel compare`, in place of the shipped ones
    known: Numbers = field(default_factory=dict)  # measured by other queues

    @property
    def scale(self) -> Scale:
        return self.own or read_scales()[self.scale_name]

    def path(self, text: str) -> str:
        """A path or a name in which {root} is the data's folder."""
        return text.replace("{root}", str(self.root))

    def missing_data(self, evaluations: Iterable[str]) -> list[str]:
        """Folders and files that the experiments need and that are not there."""
        texts = [self.scale.data]
        for name in evaluations:
            measured = self.scale.evaluations[name]
            texts += [measured.data, *(v for v in measured.settings.values() if isinstance(v, str))]
        paths = [self.path(text) for text in dict.fromkeys(texts) if "{root}" in text]
        return [path for path in paths if not Path(path).exists()]


@dataclass
class Backbone:
    """One pre-training with one seed, and its evaluations; or a control without pre-training."""

    setup: Setup
    row: Row
    base: str
    seed: int
    evaluations: list[str] = field(default_factory=list)
    trains: bool = True  # not where all its numbers are known

    @property
    def own_settings(self) -> Dotted:
        """What the row changes at this scale."""
        return self.row.at.get(self.setup.scale_name, self.row.settings)

    @property
    def recipe(self) -> str:
        chosen = self.row.recipes.get(self.setup.scale_name)
        return chosen or self.setup.scale.recipes[self.base][self.row.method]

    @property
    def folder(self) -> Path:
        """Named by what is trained: equal backbones of several experiments are one folder."""
        own = sorted(self.own_settings.items())
        parts = [f"{key.rpartition('.')[2]}={value}" for key, value in own]
        kind = [] if self.row.kind == "pretrained" else [self.row.kind]
        name = "-".join([*kind, self.recipe, *parts, f"seed{self.seed}"])
        return self.setup.out / "backbones" / name

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    @property
    def source(self) -> Path:
        """The run that gives the network; controls take that of the plain method."""
        if self.row.kind == "pretrained":
            return self.run
        plain = self.row.model_copy(update={"kind": "pretrained"})
        return Backbone(self.setup, plain, self.base, self.seed).run

    def is_trained(self) -> bool:
        """Whether the run that gives the network is finished."""
        plain = self.row.model_copy(update={"kind": "pretrained"})
        return Backbone(self.setup, plain, self.base, self.seed).seconds("pretrain") is not None

    def parts(self) -> list[str]:
        """What is to be done, in order."""
        trains = self.trains and self.row.kind == "pretrained"
        return [*(["pretrain"] if trains else []), *self.evaluations]

    def command(self, part: str) -> list[str]:
        """The words of a `lewel` command."""
        if part == "pretrain":
            return self.pretrain_command()
        if part == "maps":
            data = self.setup.path(self.setup.scale.data)
            return ["maps", str(self.run), data, "--limit", "4", "--out", str(self.folder / part)]
        if part == "step_times":
            methods = ["byol", "lewel_b", "moco_v2", "lewel_m"]
            given = flags(self.setup.scale.bench)
            out = str(self.folder / part)
            return ["bench", "step", "--only", *methods, *given, "--threads", "1", "--out", out]
        return self.evaluation_command(part)

    def pretrain_command(self) -> list[str]:
        """Pre-training by the recipe with the row's settings."""
        words = ["pretrain", self.setup.path(self.setup.scale.data), "--recipe", self.recipe]
        words += self.classes()
        given = {**self.setup.scale.settings, **self.own_settings, "seed": self.seed}
        return [*words, *flags(given), "--out", str(self.run)]

    def classes(self) -> list[str]:
        """The flag that makes ImageNet-100 of ImageNet."""
        if not self.recipe.startswith("imagenet100_"):
            return []
        return ["--classes", self.setup.path("{root}/in100.txt")]

    def evaluation_command(self, part: str) -> list[str]:
        """An evaluation as the scale has it."""
        measured = self.setup.scale.evaluations[part]
        settings: dict[str, Any] = {**measured.settings, "seed": self.seed}
        if self.row.kind == "supervised":
            settings |= {**(measured.supervised or {}), "scratch": True}
        if self.row.kind == "random_init":
            settings["untrained"] = True
        words = [measured.task, str(self.source), "--data", self.setup.path(measured.data)]
        if measured.task == "where":  # its results are kept in the run folder
            return [*words, *flags(settings)]
        recipe = measured.recipe
        recipe = recipe.get(self.row.method) if isinstance(recipe, dict) else recipe
        words += [] if recipe is None else ["--recipe", recipe]
        words += self.classes() if measured.task == "knn" else []
        given = {k: self.setup.path(v) if isinstance(v, str) else v for k, v in settings.items()}
        return [*words, *flags(given), "--out", str(self.folder / part)]

    def file(self, part: str, ending: str) -> Path:
        """What the queue keeps of a part: done.json, failed.txt, spent.json or log."""
        return self.folder / f"{part}.{ending}"

    def seconds(self, part: str, ending: str = "done.json") -> float | None:
        """How long a part took; None where it is not done, or with other settings."""
        found = self._read(part, ending)
        if found is None or found.get("digest") not in (None, digest(self, part)):
            return None
        return float(found["seconds"])

    def is_stale(self, part: str) -> bool:
        """Whether a part was done with other settings than today's."""
        return self._read(part, "done.json") is not None and self.seconds(part) is None

    def _read(self, part: str, ending: str) -> dict[str, Any] | None:
        """What the queue has written of a part; None where it is missing or damaged."""
        try:
            found = json.loads(self.file(part, ending).read_text())
            float(found["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return dict(found)

    def known(self, part: str) -> Known | None:
        """The number of another queue with the same settings."""
        return self.setup.known.get(self.folder.name, {}).get(part, {}).get(digest(self, part))

    def spent(self, part: str) -> float | None:
        """How long a part took here or elsewhere; None where it is neither done nor known."""
        own, known = self.seconds(part), self.known(part)
        return known.seconds if own is None and known is not None else own

    def to_do(self, part: str) -> bool:
        """Whether a part is neither done here nor known."""
        return self.spent(part) is None

    def number(self, evaluation: str) -> float | None:
        """The metric of an evaluation; None where it is not done."""
        if self.seconds(evaluation) is None:
            known = self.known(evaluation)
            return None if known is None else known.number
        metric = self.setup.scale.evaluations[evaluation].metric
        found = _dotted(self.result(evaluation), metric)
        if found is None and self.setup.scale.evaluations[evaluation].task != "where":
            raise RunError(
                f"The result in {self.folder / evaluation} has no {metric}: delete this folder and "
                f"{self.file(evaluation, 'done.json').name} to evaluate again."
            )
        return found

    def others(self, evaluation: str) -> dict[str, float]:
        """Its other numbers that are there, by the paper's names."""
        if self.seconds(evaluation) is None:
            known = self.known(evaluation)
            return {} if known is None else known.also
        result, also = self.result(evaluation), self.setup.scale.evaluations[evaluation].also
        found = {name: _dotted(result, key) for name, key in also.items()}
        return {name: one for name, one in found.items() if one is not None and isfinite(one)}

    def result(self, evaluation: str) -> dict[str, Any]:
        """What an evaluation wrote."""
        kept_by_run = self.setup.scale.evaluations[evaluation].task == "where"
        folder = self.run if kept_by_run else self.folder / evaluation
        (file,) = (folder / "results").glob("where.json" if kept_by_run else "*.json")
        found: dict[str, Any] = json.loads(file.read_text())[-1]["result"]
        return found


def _dotted(result: dict[str, Any], key: str) -> float | None:
    """A number of a result, by its dotted key; None where it has none."""
    found: Any = result
    for one in key.split("."):
        found = found.get(one) if isinstance(found, dict) else None
    return None if found is None else float(found)


def plan(experiments: dict[str, Experiment], setup: Setup, seeds: Iterable[int]) -> list[Backbone]:
    """All backbones that experiments need, each once; controls after what they need."""
    known: dict[Path, Backbone] = {}
    scale = setup.scale
    for seed in seeds:
        for experiment in experiments.values():
            for row in rows_of(experiment, setup.scale_name):
                one = Backbone(setup, row, experiment.base, seed)
                if seed and (row.kind == "step_times" or experiment.shows == "maps"):
                    continue  # shown once
                one = known.setdefault(one.folder, one)
                for part in parts_of(experiment, row, scale):
                    if part not in one.evaluations:
                        one.evaluations.append(part)
    needed = {one.source for one in known.values() if any(map(one.to_do, one.evaluations))}
    for one in known.values():
        one.trains = one.run in needed or one.seconds("pretrain") is not None
    return sorted(known.values(), key=lambda one: (one.seed, one.row.kind != "pretrained"))


def select(queue: list[Backbone], only: str) -> list[Backbone]:
    """The backbones with a text in their names, and the runs that controls among them need."""
    chosen = [one for one in queue if only in one.folder.name]
    sources = {one.source for one in chosen if one.row.kind in ("random_init", "supervised")}
    return [
        one if one in chosen else replace(one, evaluations=[])
        for one in queue
        if one in chosen or one.run in sources
    ]


def rows_of(experiment: Experiment, scale: ScaleName) -> list[Row]:
    """The rows of an experiment, with one for step times where it shows them."""
    extra = [Row(name="step times", method="byol", kind="step_times")]
    return [*experiment.rows_at(scale), *(extra if experiment.shows == "step times" else [])]


def parts_of(experiment: Experiment, row: Row, scale: Scale) -> list[str]:
    """What an experiment needs of a row's backbone beside its pre-training."""
    if row.kind == "step_times":
        return ["step_times"]
    if experiment.shows == "maps":
        return ["maps"]
    wanted = [name for name in experiment.evaluations if name in scale.evaluations]
    return [scale.canonical(name) for name in wanted if applies(row.kind, scale, name)]


def applies(kind: Kind, scale: Scale, evaluation: str) -> bool:
    """Whether an evaluation makes sense for a kind of backbone."""
    measured = scale.evaluations[evaluation]
    if kind == "supervised":
        return measured.supervised is not None
    return kind == "pretrained" or measured.task in ("knn", "linear")


def check_data(queue: list[Backbone], setup: Setup) -> None:
    """Report what is missing before hours of work."""
    left = {part for one in queue for part in one.parts() if one.to_do(part)}
    used = left & setup.scale.evaluations.keys()
    if left and (missing := setup.missing_data(used)):
        raise UserError(
            f"--scale {setup.scale_name} needs {', '.join(missing)}: give --data-root "
            f"({setup.scale.needs})."
        )
