"""Experiments and scales: every command of every one parses."""

from pathlib import Path

import pytest

from lewel.cli.main import app
from lewel.config.configure import configure
from lewel.config.paper import read_paper
from lewel.config.recipes import list_recipes, read_recipe
from lewel.config.reproduce import (
    ScaleName,
    choose_experiments,
    flags,
    read_experiments,
    read_scales,
)
from lewel.errors import UserError
from lewel.pages.reproduction import Cell
from lewel.tasks.reproduction_plan import Backbone, Setup, plan
from lewel.tasks.reproduction_tables import show

SCALES: list[ScaleName] = ["paper", "small", "minutes"]


def queue(scale: ScaleName) -> list[Backbone]:
    setup = Setup(scale, Path("out"), Path("data"))
    return plan(read_experiments(), setup, [0])


def test_there_is_an_experiment_for_every_table_and_figure() -> None:
    wanted = {f"table{n}" for n in range(1, 10)} | {"figure3a", "figure3b", "figure5", "maps"}
    assert set(choose_experiments([])) == set(choose_experiments(["all"])) == wanted
    assert set(choose_experiments(["all", "rates"])) == wanted | {"rates"}
    assert set(read_experiments()) == wanted | {"finer", "methods", "rates"}
    assert {e.paper for e in read_experiments().values()} >= set(range(1, 10))


@pytest.mark.parametrize("scale", SCALES)
def test_every_command_parses_and_every_pretraining_is_a_configuration(scale: ScaleName) -> None:
    for one in queue(scale):
        for part in one.parts():
            app.parse_args(one.command(part), exit_on_error=False, print_error=False)
        given = {**one.setup.scale.settings, **one.own_settings}
        overrides: dict[str, object] = {}
        for key, value in given.items():
            group, _, name = key.rpartition(".")
            target = overrides.setdefault(group, {}) if group else overrides
            target[name] = value  # type: ignore[index]
        assert configure("scenes", one.recipe, overrides).method == one.row.method


@pytest.mark.parametrize("scale", SCALES)
def test_recipes_of_evaluations_are_there(scale: ScaleName) -> None:
    for measured in read_scales()[scale].evaluations.values():
        recipes = measured.recipe
        names = recipes.values() if isinstance(recipes, dict) else [recipes] if recipes else []
        assert set(names) <= set(list_recipes("eval"))
        for name in names:
            read_recipe(name, "eval")


def test_experiments_share_their_backbones() -> None:
    names = [one.folder.name for one in queue("paper")]
    assert len(set(names)) == len(names)
    assert names.count("imagenet_lewel_b_200ep-seed0") == 1  # of Tables 1, 2, 3, 4, 8, figure 5
    (one,) = (one for one in queue("paper") if one.folder.name == "imagenet_lewel_b_200ep-seed0")
    assert {"linear", "finetune_1", "segment", "detect_coco_fpn_2x", "maps"} <= set(one.parts())


def test_evaluations_that_are_the_same_at_a_scale_are_done_once() -> None:
    scale = read_scales()["minutes"]
    assert scale.canonical("linear_100") == "linear"
    assert read_scales()["paper"].canonical("linear_100") == "linear_100"


def test_every_row_of_ours_in_a_table_of_the_paper_is_reproduced() -> None:
    """In the experiment of that table, with its settings and at least one of its measures."""
    experiments = {one.paper: one for one in read_experiments().values()}
    for table in read_paper().tables:
        for row in table.rows if table.table != 9 else []:
            if row.recipe is None:
                continue
            there = experiments[table.table]
            setup = Setup("paper", Path("out"), Path("data"))
            trained = [Backbone(setup, r, there.base, 0) for r in there.rows_at("paper")]
            own = [(one.recipe, dict(one.own_settings)) for one in trained]
            assert (row.recipe, dict(row.settings)) in own, (table.table, row.system, row.epochs)
            assert set(row.numbers) & set(there.evaluations)


def test_the_papers_numbers_agree_with_every_ordering() -> None:
    """An ordering that its own table contradicts would be a mistake of ours."""
    setup, checked = Setup("paper", Path("out"), Path("data")), 0
    for name, experiment in read_experiments().items():
        shown = show(name, experiment, setup, [0])
        at = {row.name: row.cells for row in shown.rows}
        for order in shown.orderings:
            cells = [
                at[one][shown.columns.index(order.evaluation)]
                for one in (order.better, order.worse)
            ]
            numbers = [cell.paper for cell in cells if isinstance(cell, Cell)]
            if None not in numbers:
                assert numbers[0] > numbers[1], (name, order.text())  # type: ignore[operator]
                checked += 1
    assert checked > 30


def test_settings_become_flags() -> None:
    assert flags({"head.aligned_weight": 1.0, "fast": True, "epochs": 3}) == [
        *("--head.aligned-weight", "1", "--fast", "--epochs", "3")
    ]
    assert flags({"contrast.symmetric": False, "views.blur": [0.5, 0.1]}) == [
        *("--contrast.no-symmetric", "--views.blur", "0.5", "0.1")
    ]


def test_unknown_names_are_one_message() -> None:
    with pytest.raises(UserError, match="There is no 'table10': choose from table1"):
        choose_experiments(["table10"])
    assert list(choose_experiments(["figure5", "table1"])) == ["table1", "figure5"]


def test_imagenet_100_is_a_part_of_imagenet_in_every_command_on_it() -> None:
    for one in queue("paper"):
        wanted = one.recipe.startswith("imagenet100_")
        for part in {"pretrain", "knn", "linear_100"} & set(one.parts()):
            assert ("data/in100.txt" in one.command(part)) == wanted
