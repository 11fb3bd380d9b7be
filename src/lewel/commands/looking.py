"""Commands that show where a network looks: maps as pictures, where as numbers."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from lewel.commands import Positive
from lewel.judge_config import WhereConfig

TITLES = {
    "run": "this run",
    "untrained": "untrained network",
    "random": "random maps",
    "uniform": "uniform map",
}
COLUMNS = {
    "consistency": "consistency",
    "shuffled": "shuffled",
    "pointing": "pointing",
    "iou": "IoU, mean",
    "best_iou": "IoU, best",
    "entropy": "entropy",
    "overlap": "overlap",
    "likeness": "likeness",
}
FINE = {"entropy", "overlap"}  # nearly 1 for all maps of the paper's temperature


def maps(
    run: Path,
    /,
    *images: str,
    n: int = 8,
    rule: Literal["peaked", "consistent", "different"] = "different",
    limit: Positive = 12,
    image_size: Positive | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Show where a run looks: images, views of them, and its maps as heat over each.

    Parameters
    ----------
    run
        The folder of a run.
    images
        Files of images, or a folder, a list, a data set's name, or `scenes`.
    n
        So many maps.
    rule
        Which maps: the most peaked, the most consistent over both views, or the most different.
    limit
        At most so many images.
    image_size
        Side of the views in pixels; by default the run's own. Larger ones have finer maps.
    seed
        Decides the views.
    out
        The folder to write to; by default maps in the run folder.
    """
    from lewel.looking import gallery_of, write_gallery

    console = Console()
    with console.status("looking"):
        gallery = gallery_of(
            run, list(images), n=n, rule=rule, seed=seed, limit=limit, image_size=image_size
        )
        written = write_gallery(gallery, out or run.expanduser() / "maps")
    many = f"{len(gallery.images):,} images" + (
        f" (--limit {limit})" if len(gallery.images) == limit else ""
    )
    lines = [
        f"{many}, {len(gallery.chosen)} maps: {gallery.rule}.",
        *([gallery.note] if gallery.note else []),
        *(f"wrote {path}" for path in written),
        f"next:\n  lewel where {run} --data scenes    # or VOCdevkit/VOC2012: numbers",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def where(run: Path, /, *, config: Annotated[WhereConfig, Parameter(name="*")]) -> None:
    """Measure where a run looks: consistency, object focus and diversity of its maps.

    Parameters
    ----------
    run
        The folder of a run.
    """
    from lewel.locating import ask_where

    console = Console()
    answer, path = ask_where(run, config, console)
    if not console.is_terminal:
        console.width = 240  # a file or a pipe has no edge
    console.print(_table(answer))
    for line in (*_sentences(answer), f"wrote {path}", f"next:\n  lewel maps {run} {config.data}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(answer: dict[str, Any]) -> Table:
    """A row for the run and each of its rivals, and for what it learned; intervals below."""
    shown = [name for name in COLUMNS if name in answer["rivals"]["run"]]
    title = (
        f"{answer['method']} on {answer['data']}: {answer['images']:,} images, "
        f"{answer['maps']:,} maps of {answer['positions']} positions, 95 % intervals"
    )
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    table.add_column("")
    for name in shown:
        table.add_column(COLUMNS[name], justify="right")
    for rival, found in answer["rivals"].items():
        table.add_row(TITLES[rival], *(_cell(found[name], name in FINE) for name in shown))
    learned = (_cell(answer["learned"][name], name in FINE, "+") for name in shown)
    table.add_row("run - untrained", *learned)
    return table


def _cell(number: dict[str, Any], fine: bool, sign: str = "") -> str:
    if number["value"] is None:
        return "none"
    form = f"{sign}.{4 if fine else 3}f"
    low, high = number["interval"]
    return f"{number['value']:{form}}\n{low:{form}} to {high:{form}}"


def _sentences(answer: dict[str, Any]) -> list[str]:
    """What the numbers are, and what is missing."""
    run = answer["rivals"]["run"]
    lines = [
        "consistency: correlation of a map in two views, both laid back on the image "
        f"({run['consistency']['images']:,} images share 16 cells of {answer['cells']} or more); "
        "shuffled: with another image's view. A constant map has none."
    ]
    if answer["masks"]:
        lines.append(
            "pointing: the highest place is on an object; IoU: of the objects with a map cut at "
            "their area, mean over the maps and best of them, chosen for each image "
            f"({run['iou']['images']:,} images show objects); ties count by chance. A perfect map "
            f"of so few positions would reach {answer['ideal_iou']['value']:.3f}."
        )
    else:
        lines.append(f"{answer['data']} has no masks: nothing is said of objects.")
    lines.append(
        "entropy: over log N, 1 is uniform; overlap: sum of min(a, b) over pairs of maps, 1 is "
        "equal; likeness: mean correlation of pairs."
    )
    return lines + ([answer["note"]] if answer["note"] else [])
