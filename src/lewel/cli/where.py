"""`lewel where`."""

from typing import Annotated, Any

from rich.table import Table

from lewel.cli.output import command, say
from lewel.cli.parameters import All, Run
from lewel.config.evaluate import WhereConfig
from lewel.progress import plain_console, wide

TITLES = {
    "run": "this run",
    "untrained": "randomly initialised",
    "random": "random maps",
    "uniform": "uniform map",
}
COLUMNS = {
    "consistency": "consistency",
    "shuffled": "shuffled",
    "pointing": "pointing game",
    "iou": "IoU, mean",
    "best_iou": "IoU, best",
    "matching": "matching",
    "entropy": "entropy",
    "overlap": "overlap",
    "correlation": "correlation",
}
FINE = {"entropy", "overlap"}  # nearly 1 for all maps of the paper's temperature


def where(run: Run, /, *, config: Annotated[WhereConfig, All]) -> None:
    """Measure alignment maps: consistency over views, localisation of objects, diversity."""
    from lewel.tasks import where as task

    console = plain_console()
    found = task.where(run, config, console)
    wide(console, 240).print(table_of(found.numbers))
    nexts = ["next:", command("maps", run, config.data)]
    say(console, *explanations(found.numbers), f"wrote {found.file}", *nexts)


def table_of(found: dict[str, Any]) -> Table:
    """A row for the run and each baseline, and for the run's gain; intervals below."""
    shown = [name for name in COLUMNS if name in found["baselines"]["run"]]
    title = (
        f"{found['method']} on {found['data']}: {found['images']:,} images, "
        f"{found['maps']:,} maps of {found['locations']} locations, 95 % intervals"
    )
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    table.add_column("")
    for name in shown:
        table.add_column(COLUMNS[name], justify="right")
    for baseline, numbers in found["baselines"].items():
        table.add_row(TITLES[baseline], *(cell(numbers[name], name in FINE) for name in shown))
    gain = (cell(found["gain"][name], name in FINE, "+") for name in shown)
    table.add_row("run - randomly initialised", *gain)
    return table


def cell(number: dict[str, Any], fine: bool, sign: str = "") -> str:
    """A mean with its interval below."""
    if number["value"] is None:
        return "none"
    form = f"{sign}.{4 if fine else 3}f"
    low, high = number["interval"]
    return f"{number['value']:{form}}\n{low:{form}} to {high:{form}}"


def explanations(found: dict[str, Any]) -> list[str]:
    """What the numbers are, and what is missing."""
    run = found["baselines"]["run"]
    lines = [
        "consistency: correlation of a map in two views after warping both views' maps to image "
        f"coordinates ({run['consistency']['images']:,} images share 16 of {found['cells']} cells "
        "or more); shuffled: with another image's view. A constant map has none."
    ]
    if found["masks"] and found["ideal_iou"]["value"] is None:
        lines.append(
            f"No mask of {found['data']} shows an object in these {found['images']:,} images: no "
            "pointing game, no IoU. 0 is the background, 255 are ignored pixels."
        )
    elif found["masks"]:
        lines.append(
            "pointing game: the maximum lies on an object; IoU: of the objects with a map "
            "thresholded at their area, mean over the maps and best of them for each image "
            f"({run['iou']['images']:,} images show objects); ties count by chance. A perfect map "
            f"of so few locations would reach {found['ideal_iou']['value']:.3f}."
        )
    else:
        lines.append(f"{found['data']} has no masks: no pointing game, no IoU.")
    if "matching" in run:
        lines.append(
            "matching: locations of view 1 whose most similar location of view 2, by the "
            "backbone's features, is at the same place; random maps: a random choice."
        )
    lines.append(
        "entropy: over log N, 1 is uniform; overlap: sum of min(a, b) over pairs of maps, 1 is "
        "equal; correlation: mean over pairs of maps."
    )
    return lines + ([found["note"]] if found["note"] else [])
