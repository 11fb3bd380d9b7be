"""Results of one or several runs, side by side, with the paper's number where there is one."""

import re
from pathlib import Path
from typing import Any

from rich.table import Table

from lewel.backbones import read_card, weights_file
from lewel.config import differences, read_yaml, resolve
from lewel.errors import UserError
from lewel.eval.results import Results
from lewel.recipes import list_recipes, read_recipe

COLUMNS = ("run", "method", "backbone", "task", "data", "top-1", "95 %", "top-5", "images", "paper")
# In a recipe's first line, e.g. "the paper: linear top-1 71.9 (Table 1)".
STATED = re.compile(r"the paper: (?P<task>\w+) top-1 (?P<number>[\d.]+) \((?P<where>[^;)]*)")


def results_table(runs: list[Path]) -> Table:
    """A row for each question that was answered of each run."""
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True)
    for run in runs:
        if not run.is_dir():
            raise UserError(f"{run} does not exist: expected a run folder.")
        file = weights_file(run) if (run / "backbone.safetensors").exists() else None
        card = {} if file is None else read_card(file)
        paper = paper_number(run)
        rows = [row for task in Results(run).tasks() for row in rows_of(run, card, task, paper)]
        if not rows:
            raise UserError(f"{run} has no results yet: `lewel knn {run} --data ...` makes one.")
        for row in rows:
            table.add_row(*row)
    return table


def rows_of(run: Path, card: dict[str, Any], task: str, paper: dict[str, str]) -> list[list[str]]:
    """One task of one run."""
    rows = []
    for entry in Results(run).entries(task):
        question, answer = entry["question"], entry["answer"]
        untrained = question["weights"] == "untrained"
        low, high = answer["interval"]
        rows.append(
            [
                run.name,
                "untrained" if untrained else card.get("method", "-"),
                answer["backbone"],
                task + (f" (k = {answer['k']})" if "k" in answer else ""),
                answer["data"],
                f"{answer['top1']:.1%}",
                f"{100 * low:.1f}-{100 * high:.1f}",
                f"{answer['top5']:.1%}",
                f"{answer['images']:,}",
                paper.get(task, "") if answer["data"] == "imagenet" and not untrained else "",
            ]
        )
    return rows


def paper_number(run: Path) -> dict[str, str]:
    """Task -> the paper's number, where a run was trained by one of the paper's recipes."""
    config = run / "config.yaml"
    if not config.exists():
        return {}
    trained = resolve(read_yaml(config), {})
    for name, about in list_recipes().items():
        stated = STATED.search(about)
        if stated is None:
            continue
        recipe = resolve({**read_recipe(name), "data": trained.data, "seed": trained.seed}, {})
        if recipe.epochs == trained.epochs and not differences(recipe, trained):
            return {stated["task"]: f"{stated['number']} ({stated['where']})"}
    return {}
