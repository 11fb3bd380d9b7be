"""The self-contained HTML page of runs, or of a gallery of maps."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lewel.pages.curves import charts
from lewel.pages.gallery import Gallery
from lewel.pages.neighbours import shown_queries
from lewel.pages.pictures import file_uri
from lewel.pages.reference import Reference
from lewel.pages.run_data import RunData
from lewel.pages.viewer import ShownGallery, shown_gallery

TEMPLATES = Path(__file__).parent / "templates"
LARGEST = 5_000_000  # bytes of a page, so that it can be mailed and opened on a phone
CORRUPT_SHOWN = 200
# The first columns are what a phone shows: task, result and the paper's number.
FIRST = ("run", "task", "method", "result", "paper", "95 %", "also", "data")


@dataclass(frozen=True)
class Detail:
    """Size and number of pictures; reduced where a page would become too large."""

    images: int  # of each gallery
    side: int  # pixels of an image in a gallery
    still: int  # pixels of a still overlay
    quality: int  # of a JPEG
    wide: int  # pixels of the views and of a prediction
    predictions: int  # shown of each run

    def gallery(self, gallery: Gallery, id: str) -> ShownGallery:
        """A gallery as large as this."""
        return shown_gallery(
            gallery,
            id,
            most=self.images,
            side=self.side,
            still=self.still,
            quality=self.quality,
        )


DETAILS = (
    Detail(images=64, side=224, still=96, quality=85, wide=1200, predictions=24),
    Detail(images=32, side=160, still=80, quality=75, wide=800, predictions=12),
    Detail(images=8, side=112, still=64, quality=60, wide=480, predictions=4),
    Detail(images=2, side=80, still=48, quality=50, wide=320, predictions=1),
)


def report_page(runs: Sequence[RunData], refresh: int | None = None) -> str:
    """The report of one run or several; a live page reloads every `refresh` seconds."""
    names = [run.name for run in runs]
    reference = shared_reference(runs)
    curves = reference.curves if reference else None
    drawn = charts(names, [run.metrics for run in runs], curves)
    title = names[0] if len(names) == 1 else f"{len(names)} runs side by side"
    fixed = {
        "title": title,
        "runs": runs,
        "charts": drawn,
        "reference": reference,
        "columns": result_columns(runs),
        "facts": side_by_side([{**run.highlights, **run.facts} for run in runs]),
        "settings": sorted(
            side_by_side([run.settings for run in runs]), key=lambda row: not row[2]
        ),
        "environment": side_by_side([run.environment for run in runs]),
        "corrupt_shown": CORRUPT_SHOWN,
        "refresh": refresh,
    }
    return within_limit(lambda detail: render("report.html", **fixed, **pictures(runs, detail)))


def shared_reference(runs: Sequence[RunData]) -> Reference | None:
    """The reference of all runs, if they follow the same recipe."""
    names = {run.reference.recipe if run.reference else None for run in runs}
    return runs[0].reference if len(names) == 1 else None


def gallery_page(gallery: Gallery, title: str = "Alignment maps") -> str:
    """The page of a gallery of maps."""
    return within_limit(
        lambda detail: render(
            "maps.html",
            title=title,
            refresh=None,
            gallery=detail.gallery(gallery, "maps"),
        )
    )


def within_limit(make: Callable[[Detail], str]) -> str:
    """The page with the most detail that stays below the size limit."""
    for detail in DETAILS:
        page = make(detail)
        if len(page.encode("utf-8", "replace")) < LARGEST:
            break
    return page


def pictures(runs: Sequence[RunData], detail: Detail) -> dict[str, Any]:
    """All pictures of the page; None where a file is damaged."""
    galleries, views, predictions, neighbours = [], [], [], []
    for index, run in enumerate(runs):
        if run.gallery is not None:
            galleries.append((run.name, detail.gallery(run.gallery, f"maps-{index}")))
        if run.views is not None:
            views.append((run.name, file_uri(run.views, detail.wide, detail.quality)))
        chosen = run.predictions[: detail.predictions]
        made = [(one.name, file_uri(one.content, detail.wide, detail.quality)) for one in chosen]
        if made:
            predictions.append((run.name, made, len(run.predictions) - len(made)))
        if run.neighbours is not None:
            queries = shown_queries(run.neighbours, detail.still, detail.quality)
            neighbours.append((run.name, run.neighbours.summary, queries))
    return {
        "galleries": galleries,
        "views": views,
        "predictions": predictions,
        "neighbours": neighbours,
    }


def result_columns(runs: Sequence[RunData]) -> list[str]:
    """The columns that are not empty; without `run` if there is only one run."""
    every = [result.cells for run in runs for result in run.results]
    names = dict.fromkeys([*FIRST, *(name for cells in every for name in cells)])
    used = [name for name in names if any(cells.get(name) for cells in every)]
    return [name for name in used if name != "run" or len(runs) > 1]


def side_by_side(columns: Sequence[dict[str, str]]) -> list[tuple[str, list[str], bool]]:
    """Name, each run's value, and whether they differ: a row for every name."""
    names = dict.fromkeys(name for column in columns for name in column)
    rows = []
    for name in names:
        values = [column.get(name, "") for column in columns]
        rows.append((name, values, len(set(values)) > 1))
    return rows


def render(template: str, **content: Any) -> str:
    """A template with its content; all text in it is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["run_colour"] = lambda index: index % 8
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template(template).render(
        **content,
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=digest,  # the browser runs only this script
        version=version("lewel"),
    )
