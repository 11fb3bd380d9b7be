"""What the finished parts of a reproduction show: means over seeds, differences, orderings."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lewel.config.paper import read_paper
from lewel.config.reproduce import Claim, Experiment, Row, Scale
from lewel.evaluate.statistics import Estimate, Verdict, estimate, paired_difference, verdict
from lewel.pages.reproduction import Cell, Ordering, Shown, TableRow
from lewel.tasks.reproduction_plan import Backbone, Setup, applies

Values = dict[int, float]  # by seed
MAIN = re.compile(r",? (top-1|(box )?AP)$")  # the main number, in the title of an evaluation
Column = tuple[str, str | None]  # an evaluation, and the name of one of its other numbers


class Measured(NamedTuple):
    """The numbers of a row, by column and seed."""

    row: Row
    values: dict[Column, Values]


def show(name: str, experiment: Experiment, setup: Setup, seeds: Iterable[int]) -> Shown:
    """An experiment as far as it is done."""
    seeds, scale = list(seeds), setup.scale
    rows = experiment.rows_at(setup.scale_name)
    names = evaluations_of(experiment, scale)
    measured = {row.name: measure(row, experiment, setup, names, seeds) for row in rows}
    most = max((len(v) for one in measured.values() for v in one.values.values()), default=0)
    columns = columns_of(names, scale, measured)
    return Shown(
        name=name,
        title=experiment.title,
        columns=[title_of(column, scale) for column in columns],
        axis=experiment.axis,
        rows=[
            TableRow(
                name=row.name,
                control=row.control,
                x=row.x,
                baseline=row.baseline,
                cells=[cell(row, one, measured, experiment, most) for one in columns],
            )
            for row in rows
        ],
        orderings=[
            ordering(claim, one, scale.evaluations[one].title, measured, experiment)
            for claim in experiment.claims
            for one in names
            if {claim.better, claim.worse} <= measured.keys()
            and one in (claim.evaluations or names)
        ],
        pictures=pictures(experiment, setup, seeds),
        notes=step_times(setup) if experiment.shows == "step times" else [],
    )


def evaluations_of(experiment: Experiment, scale: Scale) -> list[str]:
    """The evaluations of a table; those that are one at this scale are one column."""
    there = [one for one in experiment.evaluations if one in scale.evaluations]
    return [*{scale.canonical(one): one for one in reversed(there)}.values()][::-1]


def columns_of(names: list[str], scale: Scale, measured: dict[str, Measured]) -> list[Column]:
    """The columns of a table: each evaluation, and its other numbers that some row has."""
    there = {column for one in measured.values() for column, found in one.values.items() if found}
    every = [(name, other) for name in names for other in (None, *scale.evaluations[name].also)]
    return [column for column in every if column[1] is None or column in there]


def title_of(column: Column, scale: Scale) -> str:
    """The heading of a column; another number's stands in the place of the main one's."""
    evaluation, other = column
    title = scale.evaluations[evaluation].title
    return title if other is None else f"{MAIN.sub('', title)}, {other}"


def measure(
    row: Row, experiment: Experiment, setup: Setup, names: list[str], seeds: list[int]
) -> Measured:
    """All numbers of a row that are there."""
    values: dict[Column, Values] = {}
    for name in names:
        if applies(row.kind, setup.scale, name):
            part = setup.scale.canonical(name)
            for seed in seeds:
                one = Backbone(setup, row, experiment.base, seed)
                number = one.number(part)
                found = [] if number is None else [(None, number), *one.others(part).items()]
                for other, value in found:
                    values.setdefault((name, other), {})[seed] = 100 * value
    return Measured(row, values)


def cell(
    row: Row, column: Column, measured: dict[str, Measured], experiment: Experiment, most: int
) -> Cell:
    """One number: ours, its difference to the row's baseline, and the paper's; `most` seeds."""
    mine = measured[row.name].values.get(column, {})
    base = measured[row.baseline].values.get(column, {}) if row.baseline in measured else {}
    return Cell(
        ours=estimate(list(mine.values())) if mine else None,
        difference=paired_difference(mine, base),
        paper=papers_number(row, column, experiment),
        partial=0 < len(mine) < most,
    )


def papers_number(row: Row, column: Column, experiment: Experiment) -> float | None:
    """The paper's number for a row, where its table has the row."""
    if experiment.paper is None or row.control:
        return None
    at_paper = Backbone(Setup("paper", Path(), Path()), row, experiment.base, 0)
    evaluation, other = column
    known = read_paper().evaluations.get(evaluation)
    if known is None or (other is not None and other not in known.metrics):
        return None
    at = 0 if other is None else known.metrics.index(other)  # the first is the main one
    for table in read_paper().tables:
        for stated in table.rows if table.table == experiment.paper else []:
            same = stated.recipe == at_paper.recipe and stated.settings == dict(row.settings)
            numbers = stated.numbers.get(evaluation, [])
            if same and at < len(numbers) and numbers[at] is not None:
                return numbers[at]
    return None


def ordering(
    claim: Claim,
    evaluation: str,
    title: str,
    measured: dict[str, Measured],
    experiment: Experiment,
) -> Ordering:
    """An ordering: holds, undecided or contradicted at this scale."""
    both = [measured[name] for name in (claim.better, claim.worse)]
    one, two = (found.values.get((evaluation, None), {}) for found in both)
    difference: Estimate | None = paired_difference(one, two)
    decided: Verdict = verdict(difference)
    numbers = [papers_number(found.row, (evaluation, None), experiment) for found in both]
    drawn = experiment.axis is not None and evaluation != "knn"  # its figures state no numbers
    return Ordering(
        claim.better, claim.worse, title, difference, decided, drawn or None not in numbers
    )


def pictures(experiment: Experiment, setup: Setup, seeds: list[int]) -> list[tuple[str, Path]]:
    """The maps of an experiment's backbones, where they are drawn."""
    if experiment.shows != "maps":
        return []
    found = []
    for row in experiment.rows_at(setup.scale_name):
        file = Backbone(setup, row, experiment.base, seeds[0]).folder / "maps" / "maps.png"
        found += [(row.name, file)] if file.exists() else []
    return found


def step_times(setup: Setup) -> list[str]:
    """Ratios of the times of training steps, beside the paper's."""
    row = Row(name="step times", method="byol", kind="step_times")
    file = Backbone(setup, row, "imagenet", 0).folder / "step_times" / "step.json"
    if not file.exists():
        return ["Step times are not measured yet."]
    steps = json.loads(file.read_text())["steps"]
    (table,) = (one for one in read_paper().tables if one.table == 9)
    stated = {one.system: one.numbers["time"][0] for one in table.rows}
    out = []
    for one, base in (("LEWEL_B", "BYOL"), ("LEWEL_M", "MoCo v2")):
        ours = steps[one]["seconds"] / steps[base]["seconds"]
        top, bottom = stated[one], stated[base]
        theirs = f"{top / bottom:.2f}" if top is not None and bottom is not None else "none"
        out.append(f"{one} / {base}: {ours:.2f} (the paper: {theirs} of an epoch's time on GPUs)")
    return out
