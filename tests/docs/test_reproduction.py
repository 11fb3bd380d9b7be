"""The page "Reproduction": its tables follow from the numbers that are stored beside it."""

import re
from pathlib import Path

from lewel.config.recipes import read_recipe
from lewel.config.reproduce import choose_experiments
from lewel.methods.registry import find_method
from lewel.pages.reproduction import markdown
from lewel.tasks.reproduction_numbers import read_numbers
from lewel.tasks.reproduction_plan import Setup, plan
from lewel.tasks.reproduction_tables import show
from tests.docs.pages import ROOT

RATES = ROOT / "docs" / "measured" / "rates.json"
NUMBERS = ROOT / "docs" / "measured" / "small.json"
SEEDS = range(3)
STATED = ["table1", "table2", "table3", "table5", "table6", "table8", "figure3a", "maps"]


def setup() -> Setup:
    return Setup("small", Path("nowhere"), Path("nowhere"), known=read_numbers([NUMBERS]))


def test_the_tables_are_those_of_the_stored_numbers() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").splitlines()
    for name, experiment in choose_experiments(STATED).items():
        text = markdown(show(name, experiment, setup(), SEEDS), "small")
        rows = [line for line in text.splitlines() if line.startswith(("| ", "* "))]
        assert len(rows) > 3 and [line for line in rows if line not in page] == []


def test_the_summary_states_differences_of_the_tables() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    summary, _, results = page.partition("**Found.**")
    stated = re.findall(r"[+-]\d\.\d\d ± \d\.\d\d", summary)
    assert len(stated) == 16 and [one for one in stated if f"({one}, 3 seeds)" not in results] == []


def searched() -> dict[str, dict[float, float]]:
    """k-NN in percent by method and learning rate, as far as it is measured."""
    known = Setup("small", Path("nowhere"), Path("nowhere"), known=read_numbers([RATES]))
    found: dict[str, dict[float, float]] = {}
    for one in plan(choose_experiments(["rates"]), known, range(1)):
        if (number := one.number("knn")) is not None:
            found.setdefault(one.row.method, {})[float(one.row.settings["optim.lr"])] = 100 * number  # type: ignore[arg-type]
    return found


def test_recipes_have_the_best_learning_rate_of_the_search() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    rows = searched()
    assert len(rows) >= 8
    for method, values in rows.items():
        best = max(values, key=lambda rate: values[rate])
        cells = [
            f"{'**' * (r == best)}{r:g}: {v:.1f}{'**' * (r == best)}" for r, v in values.items()
        ]
        if len(values) == 3:
            recipe = read_recipe(f"tinyimagenet_{method}_15min")
            assert recipe["optim"]["lr"] == best, method
            assert f"| {find_method(method).about.title} | {' | '.join(cells)} |" in page


def test_the_stored_numbers_are_of_todays_settings() -> None:
    known = setup().known
    used = {
        (one.folder.name, part)
        for one in plan(choose_experiments([]), setup(), SEEDS)
        for part in one.evaluations
        if one.known(part) is not None
    }
    assert used == {(name, part) for name, parts in known.items() for part in parts}
