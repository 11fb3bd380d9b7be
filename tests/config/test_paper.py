"""recipes/paper.yaml holds the numbers of the paper's tables, and our recipes for its rows."""

import re
from collections import Counter

import pytest
from pydantic import ValidationError

from lewel.config.methods import arguments, refuse_unused
from lewel.config.paper import Cell, Paper, Row, read_paper
from lewel.config.recipes import list_recipes, read_recipe, recipe_folder
from lewel.config.resolve import resolve
from lewel.config.settings import read_yaml
from lewel.methods.registry import all_methods, find_method

# Counted in the paper: rows, numbers, and dashes. Table 1 has a row of ours for each number of
# epochs, and no column of top-5 accuracy at 400 epochs.
ROWS = {1: 25, 2: 10, 3: 13, 4: 15, 5: 4, 6: 7, 7: 9, 8: 6, 9: 4}
NUMBERS = {1: 33, 2: 38, 3: 48, 4: 88, 5: 8, 6: 14, 7: 18, 8: 69, 9: 8}
DASHES = {1: 17, 2: 2, 3: 4, 4: 2, 5: 0, 6: 0, 7: 0, 8: 15, 9: 0}
DAGGERS = {1: 12, 2: 0, 3: 5, 4: 5, 5: 0, 6: 0, 7: 0, 8: 0, 9: 0}
STARS = {1: 4, 2: 2, 3: 4, 4: 2, 5: 0, 6: 0, 7: 0, 8: 0, 9: 0}
# The sums of all numbers of each table, computed from the paper's source.
SUMS = {
    1: 2425.3,
    2: 2727.5,
    3: 3202.1,
    4: 3935.7,
    5: 572.9,
    6: 997.3,
    7: 1305.9,
    8: 3586.6,
    9: 5039.7,
}


def test_every_cell_of_the_tables_is_there() -> None:
    tables = {one.table: one for one in read_paper().tables}
    assert {number: len(one.rows) for number, one in tables.items()} == ROWS
    assert Counter(cell.table for cell in read_paper().cells()) == NUMBERS
    dashes = Counter(
        one.table
        for one in tables.values()
        for row in one.rows
        for values in row.numbers.values()
        for value in values
        if value is None
    )
    assert {number: dashes[number] for number in tables} == DASHES
    assert {n: sum(row.dagger for row in one.rows) for n, one in tables.items()} == DAGGERS
    assert {n: sum(row.reproduced for row in one.rows) for n, one in tables.items()} == STARS
    for number, expected in SUMS.items():
        own = sum(cell.value for cell in read_paper().cells() if cell.table == number)
        assert own == pytest.approx(expected), number


def matching(table: int, system: str, **row: object) -> list[Cell]:
    return [
        cell
        for cell in read_paper().cells()
        if (cell.table, cell.row.system) == (table, system)
        and all(getattr(cell.row, key) == value for key, value in row.items())
    ]


@pytest.mark.parametrize(
    ("table", "system", "row", "evaluation", "numbers"),
    [
        (1, "InstDisc", {"epochs": 200}, "linear", {"top-1": 56.5}),
        (1, "SimCLR", {"epochs": 400, "dagger": True}, "linear", {"top-1": 70.4}),
        (1, "LEWEL_M", {"epochs": 200}, "linear", {"top-1": 68.4, "top-5": 88.6}),
        (2, "PCL", {}, "finetune_10", {"top-5": 86.5}),
        (2, "Barlow Twins", {"epochs": 1000}, "finetune_1", {"top-1": 55.0, "top-5": 79.2}),
        (2, "LEWEL_B", {"epochs": 400}, "finetune_10", {"top-1": 70.4, "top-5": 90.1}),
        (3, "Supervised", {"epochs": 90, "dagger": True}, "segment", {"mIoU": 67.7}),
        (3, "LEWEL_B", {"epochs": 200}, "detect_voc", {"AP": 56.5, "AP50": 82.6, "AP75": 63.7}),
        (4, "PixelPro", {}, "detect_coco_fpn_1x",
            {"AP": 41.4, "AP50": 61.6, "AP75": 45.4, "mask AP": 37.4}),
        (5, "LEWEL_M", {"settings": {"head.maps": "separate"}}, "linear_100", {"top-1": 81.0}),
        (6, "MoCo v2", {"settings": {"head.dim": 512}}, "segment", {"mIoU": 61.5}),
        (6, "LEWEL_M", {"settings": {"head.maps": "random"}}, "linear_100", {"top-1": 79.8}),
        (7, "LEWEL_B", {"variant": {"d": 64, "h": 4}}, "linear_100", {"top-1": 84.8}),
        (7, "BYOL", {}, "segment", {"mIoU": 59.7}),
        (8, "ReSim", {}, "linear", {"top-1": 66.1}),
        (8, "LEWEL_M", {}, "linear", {"top-1": 68.1, "top-5": 88.6}),
        (9, "LEWEL_B", {}, "time", {"seconds per epoch": 1191}),
        (9, "LEWEL_B", {}, "accuracy_beside_time", {"top-1": 71.5}),
    ],
)  # fmt: skip
def test_cells_by_value(
    table: int, system: str, row: dict[str, object], evaluation: str, numbers: dict[str, float]
) -> None:
    cells = [cell for cell in matching(table, system, **row) if cell.evaluation == evaluation]
    assert {cell.metric: cell.value for cell in cells} == numbers


def test_percents_are_percents() -> None:
    paper = read_paper()
    for cell in paper.cells():
        if paper.evaluations[cell.evaluation].unit == "percent":
            assert 30 < cell.value < 95, cell


def our_rows() -> list[tuple[int, Row]]:
    tables = read_paper().tables
    return [(t.table, row) for t in tables for row in t.rows if row.recipe is not None]


def test_recipes_of_rows_train_what_the_row_is() -> None:
    names = {kind.about.title: kind.about.name for kind in all_methods()} | {"PixelPro": "pixpro"}
    for table, row in our_rows():
        config = resolve(read_recipe(str(row.recipe)), row.overrides)
        extra = table == 6 and row.system == "MoCo v2" and row.variant["extra p"]
        assert config.method == ("lewel_m" if extra else names[row.system])
        assert row.epochs in (None, config.epochs)
        refuse_unused(find_method(config.method), row.overrides)
        assert row.variant.get("d", config.head.dim) == config.head.dim
        assert row.variant.get("h") in (None, config.head.groups)


def test_every_row_of_another_system_names_a_recipe() -> None:
    """But for SimCLR's two rows of its own paper, BYOL's of other papers, and supervised ones."""
    missing = [
        (table.table, row.system)
        for table in read_paper().tables
        for row in table.rows
        if row.recipe is None and row.system not in ("BYOL", "Supervised")
    ]
    assert missing == [(1, "SimCLR"), (1, "SimCLR")]
    cited = {row.system for _, row in our_rows() if row.cited and not row.dagger}
    assert cited == {
        "InstDisc",
        "PCL",
        "SimCLR",
        "SwAV",
        "Barlow Twins",
        "DenseCL",
        "ReSim",
        "PixelPro",
    }


def test_every_variant_is_a_run_of_its_own() -> None:
    for table in read_paper().tables:
        own = [(row.recipe, *row.settings.items()) for row in table.rows if row.recipe]
        expected = 2 if table.table == 4 else 1  # C4 and FPN
        assert max(Counter(own).values()) <= expected, table.table


def test_recipes_for_evaluation_exist() -> None:
    known = list_recipes("eval")
    for name, evaluation in read_paper().evaluations.items():
        methods = {resolve(read_recipe(str(row.recipe)), {}).method for _, row in our_rows()}
        recipes = {evaluation.recipe_for(method) for method in methods}
        assert recipes <= known.keys() if evaluation.task else recipes == {None}, name


def test_recipes_state_the_papers_numbers() -> None:
    first = {"linear", "linear_100"}
    stated = {
        (cell.row.recipe, cell.table): cell.value
        for cell in read_paper().cells()
        if cell.row.recipe and not cell.row.settings
        if cell.evaluation in first and cell.metric == "top-1"
    }
    for name, about in list_recipes().items():
        found = re.search(r"the paper: linear top-1 ([\d.]+) \(Tables? (\d)", about)
        assert (found is None) == (name not in {recipe for recipe, _ in stated}), name
        if found is None:
            continue
        assert stated[name, int(found[2])] == float(found[1]), name
        for (recipe, table), value in stated.items():
            if recipe == name and value != float(found[1]):
                assert f"{value} in Table {table}" in about, name


@pytest.mark.parametrize("method", ["moco_v2", "lewel_m"])
def test_imagenet_100_keeps_the_queue_of_imagenet(method: str) -> None:
    queues = {
        arguments(resolve(read_recipe(f"{name}_{method}_{epochs}ep"), {}), images)["contrast"].queue
        for name, epochs, images in (("imagenet", 200, 1_281_167), ("imagenet100", 240, 126_689))
    }
    assert queues == {65_536}


def test_a_row_of_the_wrong_length_is_refused() -> None:
    content = read_yaml(recipe_folder() / "paper.yaml")
    content["tables"][0]["rows"][0]["numbers"]["linear"] = [56.5]
    with pytest.raises(ValidationError, match="table 1, InstDisc: 1 numbers of linear, expected 2"):
        Paper.model_validate(content)
