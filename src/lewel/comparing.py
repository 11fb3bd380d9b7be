"""Results of one or several runs, side by side, with the paper's number where there is one."""

from pathlib import Path
from typing import Any

from rich.table import Table

from lewel.backbones import read_card, weights_file
from lewel.config import differences, read_yaml, resolve
from lewel.errors import UserError
from lewel.eval.results import Entry, Results
from lewel.recipes import list_recipes, paper_numbers, read_recipe

COLUMNS = ("run", "method", "backbone", "task", "data", "top-1", "95 %", "top-5", "images", "paper")


def results_table(runs: list[Path]) -> Table:
    """A row for each question that was answered of each run."""
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True)
    for run in runs:
        rows = result_rows(run)
        if not rows:
            raise UserError(f"{run} has no results yet: `lewel knn {run} --data ...` makes one.")
        for row in rows:
            table.add_row(*row)
    return table


def result_rows(run: Path) -> list[list[str]]:
    """All results of a run, a value for each of COLUMNS."""
    if not run.is_dir():
        raise UserError(f"{run} does not exist: expected a run folder.")
    file = weights_file(run) if (run / "backbone.safetensors").exists() else None
    card = {} if file is None else read_card(file)
    results, paper = Results(run), numbers_of(run)
    entries = [entry for task in results.tasks() for entry in results.entries(task)]
    entries = [entry for entry in entries if "top1" in entry["answer"]]
    return [row_of(run, card, entry, paper) for entry in entries]


def row_of(run: Path, card: dict[str, Any], entry: Entry, paper: dict[str, Any]) -> list[str]:
    """One question and its answer."""
    question, answer = entry["question"], entry["answer"]
    task, (low, high) = task_of(entry), answer["interval"]
    fresh = question["weights"] == "untrained"
    learns = "labels" in question
    method = "supervised" if fresh and learns else "untrained" if fresh else card.get("method", "-")
    number = "" if fresh or answer["data"] != "imagenet" else stated(paper.get(task))
    return [
        run.name,
        method,
        answer["backbone"],
        task + (f" (k = {answer['k']})" if "k" in answer else ""),
        answer["data"],
        f"{answer['top1']:.1%}",
        f"{100 * low:.1f}-{100 * high:.1f}",
        f"{answer['top5']:.1%}",
        f"{answer['images']:,}",
        number,
    ]


def task_of(entry: Entry) -> str:
    """The task as the paper's tables tell it: fine-tuning by its share of the labels."""
    labels = entry["question"].get("labels")
    task: str = entry["answer"]["task"]
    return task if labels is None else f"{task} {labels if labels.endswith('%') else 'by list'}"


def stated(number: list[Any] | None) -> str:
    """The paper's top-1, top-5 and table in words."""
    if number is None:
        return ""
    top1, top5, where = number
    return f"{top1} ({where})" if top5 == "-" else f"{top1}, top-5 {top5} ({where})"


def numbers_of(run: Path) -> dict[str, Any]:
    """Task -> the paper's numbers, where a run was trained by one of the paper's recipes."""
    config = run / "config.yaml"
    if not config.exists():
        return {}
    trained = resolve(read_yaml(config), {})
    paper = paper_numbers()
    for name in list_recipes():
        if name not in paper:
            continue
        recipe = resolve({**read_recipe(name), "data": trained.data, "seed": trained.seed}, {})
        if recipe.epochs == trained.epochs and not differences(recipe, trained):
            return paper[name]
    return {}
