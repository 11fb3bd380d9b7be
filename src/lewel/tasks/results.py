"""`lewel results`: the results of one or several runs, side by side, with the paper's numbers."""

from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from lewel.errors import RunError, UserError, state_of
from lewel.evaluate.results import Entry, Results
from lewel.evaluate.statistics import counted
from lewel.interop.lookup import read_card, weights_file
from lewel.tasks.paper import find_evaluation, numbers_of

__all__ = ["COLUMNS", "Row", "Score", "numbers_of", "result_rows", "results_table"]

COLUMNS = ("run", "method", "backbone", "task", "data", "result", "95 %", "also", "images", "paper")
# Key of a result -> name of the metric. The first one that a result has is its main metric.
METRICS = {"top1": "top-1", "miou": "mIoU", "top5": "top-5"}
PRECISIONS = ("AP", "AP50", "AP75")
USUAL_TEMPERATURE = 0.1  # of k-NN
MAPS = ("consistency", "pointing", "iou")  # metrics of `lewel where`


class Row(NamedTuple):
    """One evaluation: a cell for each of COLUMNS, and its result."""

    cells: list[str]
    result: dict[str, Any]


class Score(NamedTuple):
    """One number of a result, as it is printed."""

    name: str
    value: str
    interval: str = ""


def results_table(runs: list[Path]) -> Table:
    """A row for each evaluation of each run; empty columns are left out."""
    cells: list[list[str]] = []
    for run in dict.fromkeys(runs):
        if not run.is_dir():
            raise UserError(f"{run} {state_of(run)}: expected a run folder.")
        rows = result_rows(run, numbers_of(run))
        if not rows:
            raise UserError(f"{run} has no results yet: `lewel knn {run} --data ...` makes one.")
        cells += [row.cells for row in rows]
    table = Table(box=None, pad_edge=False)
    shown = [index for index, column in enumerate(zip(*cells, strict=True)) if any(column)]
    for index in shown:
        table.add_column(COLUMNS[index], no_wrap=True)
    for row in cells:
        table.add_row(*(row[index] for index in shown))
    return table


def result_rows(run: Path, paper: dict[str, str]) -> list[Row]:
    """All results of a run; `paper` holds the paper's numbers by evaluation (`numbers_of`)."""
    file = weights_file(run) if (run / "backbone.safetensors").exists() else None
    card = {} if file is None else read_card(file)
    results = Results(run)
    rows = []
    for task in results.tasks():
        for entry in results.entries(task):
            try:
                found = find_evaluation(file, card, task, entry) if paper and file else None
                stated = "" if found is None else paper.get(found, "")
                rows.append(Row(cells_of(run, card, task, entry, stated), entry["result"]))
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                reason = f"lacks {error}" if isinstance(error, KeyError) else "is no result"
                raise RunError(
                    f"{results.path(task)} is damaged, or another version wrote it (an entry "
                    f"{reason}): delete it to evaluate again."
                ) from None
    return rows


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def cells_of(run: Path, card: dict[str, Any], task: str, entry: Entry, paper: str) -> list[str]:
    """The cells of one evaluation."""
    settings, result = entry["settings"], entry["result"]
    main, *others = scores_of(result)
    return [
        run.name,
        method_of(card, settings),
        result["backbone"],
        task_in_words(task, settings, result) + wrongly_normalised(settings),
        _text(result["data"]),
        f"{main.name} {main.value}",
        main.interval,
        ", ".join(f"{score.name} {score.value}" for score in others),
        counted(result["images"]) if "images" in result else "",
        paper,
    ]


def wrongly_normalised(settings: dict[str, Any]) -> str:
    """A mark for results of version 0.1, which normalised all images as ImageNet's."""
    name = settings["weights"]
    if not str(name).startswith("timm/") or "colours" in settings:
        return ""
    from lewel.interop.published import Colours, colours_of  # needs torch, for few results

    return "" if colours_of(name) == Colours() else ", with ImageNet's mean and std"


def method_of(card: dict[str, Any], settings: dict[str, Any]) -> str:
    """How the evaluated weights were trained."""
    if settings["weights"] != "untrained":
        return str(card.get("method", "-"))
    trains_backbone = "labels" in settings or "iterations" in settings
    return "supervised" if trains_backbone else "randomly initialised"


def scores_of(result: dict[str, Any]) -> list[Score]:
    """The numbers of a result, the main one first."""
    if "baselines" in result:
        scores = map_scores(result["baselines"]["run"])
    elif "AP" in result:
        scores = detection_scores(result)
    else:
        low, high = result.get("interval", (0.0, 0.0))
        interval = f"{100 * low:.1f}-{100 * high:.1f}" if "interval" in result else ""
        found = [(name, result[key]) for key, name in METRICS.items() if key in result]
        scores = [Score(name, f"{value:.1%}", interval) for name, value in found]
    return scores or [Score("", "")]


def map_scores(numbers: dict[str, Any]) -> list[Score]:
    """The metrics of `lewel where` that the data allows."""
    found = {name: numbers.get(name) for name in MAPS}
    return [
        Score(name, f"{one['value']:.3f}", "{:.3f}-{:.3f}".format(*one["interval"]))
        for name, one in found.items()
        if one is not None and one["value"] is not None
    ]


def detection_scores(result: dict[str, Any]) -> list[Score]:
    """Average precisions of boxes, then of masks, and how they are computed."""
    boxes = [(name, result[name]) for name in PRECISIONS]
    masks = [(f"mask {name}", result.get("mask", {}).get(name)) for name in PRECISIONS]
    found = [(name, value) for name, value in boxes + masks if value is not None]
    rule = Score("by", f"{result['rule']}'s rule")
    return [*(Score(name, f"{value:.1%}") for name, value in found), rule]


def task_in_words(task: str, settings: dict[str, Any], result: dict[str, Any]) -> str:
    """A task with the settings that matter."""
    name, about = task, []
    if "arch" in settings:
        name = f"{task} {settings['arch']}"
    elif "labels" in settings:
        labels = settings["labels"]
        name = f"{task} {labels if labels.endswith('%') else 'by list'}"
    if "k" in result:
        about += [f"k = {result['k']}"]
    if settings.get("temperature", USUAL_TEMPERATURE) != USUAL_TEMPERATURE:
        about += [f"temperature {settings['temperature']:g}"]
    if "epochs" in settings and task != "linear_fast":
        about += [f"{settings['epochs']} epochs"]
    if "iterations" in settings:
        rate = result["lr"] if "lr" in result else settings["lr"]
        about += [f"{settings['iterations']:,} steps", f"lr {rate}"]
    if tried := len(result.get("by_lr", ())):
        about += [f"best of {tried}"]
    if settings.get("limit") and task != "where":
        about += [f"of {settings['limit']:,} images"]
    return f"{name} ({', '.join(about)})" if about else name
