"""Results of one or several runs, side by side, with the paper's numbers where there are any."""

from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from lewel.config import differences, read_yaml, resolve
from lewel.errors import UserError
from lewel.eval.results import Entry, Results
from lewel.finding import read_card, weights_file
from lewel.recipes import list_recipes, paper_numbers, read_recipe

COLUMNS = ("run", "method", "backbone", "task", "data", "result", "95 %", "also", "images", "paper")
# Which number of an answer is what; its result is the first that it has, the others stand beside.
SHARES = {"top1": "top-1", "miou": "mIoU", "top5": "top-5"}
PRECISIONS = ("AP", "AP50", "AP75")
MAPS = ("consistency", "pointing", "iou")  # of `lewel where`
PAPER_DATA = {"segment": "VOC2012-train_aug"}  # what a task's numbers were judged on; or imagenet
# What is learned, how it is seen, for how long, and whether with masks -> the paper's name of it.
DETECTION = {
    ("voc0712", "c4", 24_000, False): "detect voc c4",
    ("coco", "c4", 90_000, True): "detect coco c4",
    ("coco", "fpn", 90_000, True): "detect coco fpn 1x",
    ("coco", "fpn", 180_000, True): "detect coco fpn 2x",
}


class Row(NamedTuple):
    """One question that was answered: a cell for each of COLUMNS, and the answer."""

    cells: list[str]
    answer: dict[str, Any]


class Score(NamedTuple):
    """One number of an answer, as it is printed."""

    name: str
    value: str
    interval: str


def results_table(runs: list[Path]) -> Table:
    """A row for each question that was answered of each run; columns that say something."""
    cells: list[list[str]] = []
    for run in runs:
        if not run.is_dir():
            raise UserError(f"{run} does not exist: expected a run folder.")
        rows = result_rows(run, numbers_of(run))
        if not rows:
            raise UserError(f"{run} has no results yet: `lewel knn {run} --data ...` makes one.")
        cells += [row.cells for row in rows]
    table = Table(box=None, pad_edge=False)
    told = [index for index, column in enumerate(zip(*cells, strict=True)) if any(column)]
    for index in told:
        table.add_column(COLUMNS[index], no_wrap=True)
    for row in cells:
        table.add_row(*(row[index] for index in told))
    return table


def result_rows(run: Path, paper: dict[str, Any]) -> list[Row]:
    """All results of a run, beside the paper's numbers by task."""
    file = weights_file(run) if (run / "backbone.safetensors").exists() else None
    card = {} if file is None else read_card(file)
    results = Results(run)
    return [
        Row(cells_of(run, card, task, entry, paper), entry["answer"])
        for task in results.tasks()
        for entry in results.entries(task)
    ]


def cells_of(
    run: Path, card: dict[str, Any], task: str, entry: Entry, paper: dict[str, Any]
) -> list[str]:
    """One question and its answer."""
    question, answer = entry["question"], entry["answer"]
    fresh, asked = question["weights"] == "untrained", task_of(task, entry)
    learns = "labels" in question or "iterations" in question  # the backbone too
    main, *others = scores_of(answer)
    comparable = task == "detect" or answer["data"] == PAPER_DATA.get(task, "imagenet")
    return [
        run.name,
        ("supervised" if learns else "untrained") if fresh else card.get("method", "-"),
        answer["backbone"],
        described(asked, task, question, answer),
        answer["data"],
        f"{main.name} {main.value}",
        main.interval,
        ", ".join(f"{score.name} {score.value}" for score in others),
        f"{answer['images']:,}" if "images" in answer else "",
        stated(paper.get(asked)) if comparable and not fresh else "",
    ]


def scores_of(answer: dict[str, Any]) -> list[Score]:
    """The numbers of an answer, the main one first."""
    if "rivals" in answer:
        found = {name: answer["rivals"]["run"].get(name) for name in MAPS}
        return [
            Score(name, f"{one['value']:.3f}", "{:.3f}-{:.3f}".format(*one["interval"]))
            for name, one in found.items()
            if one is not None and one["value"] is not None
        ] or [Score("", "", "")]
    if "AP" in answer:
        boxes = [(name, answer[name]) for name in PRECISIONS]
        masks = [(f"mask {name}", answer.get("mask", {}).get(name)) for name in PRECISIONS]
        told = [(name, value) for name, value in boxes + masks if value is not None]
        rule = Score("by", f"{answer['rule']}'s rule", "")
        return [*(Score(name, f"{value:.1%}", "") for name, value in told), rule]
    low, high = answer.get("interval", (0.0, 0.0))
    interval = f"{100 * low:.1f}-{100 * high:.1f}" if "interval" in answer else ""
    shares = [(name, answer[key]) for key, name in SHARES.items() if key in answer]
    return [Score(name, f"{value:.1%}", interval) for name, value in shares] or [Score("", "", "")]


def task_of(task: str, entry: Entry) -> str:
    """The task as the paper's tables tell it: fine-tuning by its share of the labels."""
    question = entry["question"]
    labels = question.get("labels")
    if "arch" in question:
        own = question["limit"] is None and question["batch_size"] == 16
        asked = (entry["answer"]["data"], *(question[k] for k in ("arch", "iterations", "masks")))
        return DETECTION.get(asked if own else (), f"{task} {question['arch']}")
    return task if labels is None else f"{task} {labels if labels.endswith('%') else 'by list'}"


def described(asked: str, task: str, question: dict[str, Any], answer: dict[str, Any]) -> str:
    """A task with what tells two questions of it apart."""
    told = []
    if "k" in answer:
        told += [f"k = {answer['k']}"]
    if "epochs" in question and task != "linear_fast":
        told += [f"{question['epochs']} epochs"]
    if "iterations" in question:
        rate = answer["lr"] if "lr" in answer else question["lr"]
        told += [f"{question['iterations']:,} steps", f"lr {rate}"]
    if tried := len(answer.get("search", answer.get("rates", ()))):
        told += [f"best of {tried}"]
    if question.get("limit") and task != "where":
        told += [f"of {question['limit']:,} images"]
    return f"{asked} ({', '.join(told)})" if told else asked


def stated(numbers: dict[str, Any] | None) -> str:
    """The paper's numbers and their table in words."""
    if numbers is None:
        return ""
    told = [f"{name} {number}" for name, number in numbers.items() if name != "where"]
    return f"{', '.join(told)} ({numbers['where']})"


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
