"""Reproduced tables and figures as Markdown and as one page."""

import base64
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from lewel.evaluate.statistics import Estimate, Verdict
from lewel.files import write_atomically
from lewel.pages.page import render


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    ours: Estimate | None
    difference: Estimate | None
    paper: float | None
    partial: bool = False  # whether it has fewer seeds than others of its table

    def text(self) -> str:
        """Ours with its interval, the difference to the baseline, and the paper's number."""
        ours = "-" if self.ours is None else with_margin(self.ours)
        if self.ours is not None and self.partial:
            ours += f" ({self.ours.seeds} seed{'s' * (self.ours.seeds > 1)})"
        gain = "" if self.difference is None else f"; {with_margin(self.difference, '+')}"
        return f"{ours}{gain}" + ("" if self.paper is None else f" [paper {self.paper:g}]")


@dataclass(frozen=True)
class Fact:
    """A cell that is no mean over seeds."""

    content: str
    ours: None = None

    def text(self) -> str:
        return self.content


def with_margin(one: Estimate, sign: str = "", digits: int = 1) -> str:
    """A mean and half the width of its interval."""
    margin = "" if one.margin is None else f" ± {one.margin:.{digits}f}"
    return f"{round(one.mean, digits) + 0.0:{sign}.{digits}f}{margin}"  # + 0.0: no minus before 0


@dataclass(frozen=True)
class TableRow:
    """A row of a table, or a point of a figure."""

    name: str
    control: bool
    x: float | None
    baseline: str | None
    cells: list[Cell | Fact]

    @property
    def label(self) -> str:
        return f"{self.name} (control)" if self.control else self.name


@dataclass(frozen=True)
class Ordering:
    """An ordering, and what we found."""

    better: str
    worse: str
    evaluation: str
    difference: Estimate | None
    verdict: Verdict
    stated: bool = True  # whether the paper has this measure of both

    def text(self) -> str:
        words = f"{self.better} > {self.worse}, {self.evaluation}: {self.verdict}"
        if self.difference is None:
            return words
        many = self.difference.seeds
        seeds = "1 seed" if many == 1 else f"{many} seeds"
        return f"{words} ({with_margin(self.difference, '+', 2)}, {seeds})"


@dataclass(frozen=True)
class Shown:
    """A table or a figure, ready to be written."""

    name: str
    title: str
    columns: list[str]
    axis: str | None
    rows: list[TableRow]
    orderings: list[Ordering]
    pictures: list[tuple[str, Path]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is measured."""
        return not self.pictures and not any(c.ours for row in self.rows for c in row.cells)

    @property
    def grouped(self) -> list[tuple[str, list[Ordering]]]:
        """The orderings under their headings."""
        kinds = (True, "Orderings of the paper"), (False, "Orderings beyond the paper")
        groups = [(title, [o for o in self.orderings if o.stated is is_]) for is_, title in kinds]
        return [(title, found) for title, found in groups if found]


def markdown(shown: Shown, scale: str) -> str:
    """A table as Markdown."""
    lines = [f"# {shown.title}", "", f"Scale: {scale}.", ""]
    if shown.columns:
        header = ["", *shown.columns]
        lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        for row in shown.rows:
            lines.append("| " + " | ".join([row.label, *(c.text() for c in row.cells)]) + " |")
        lines += ["", LEGEND, ""]
    for title, orderings in shown.grouped:
        lines += [f"{title}:", "", *(f"* {one.text()}" for one in orderings), ""]
    lines += [f"* {note}" for note in shown.notes]
    lines += [f"![{name}]({picture(shown, at)})" for at, (name, _) in enumerate(shown.pictures)]
    return "\n".join(lines).rstrip() + "\n"


LEGEND = (
    "Means over seeds in percent ± half of the 95 % interval (Student's t); after the semicolon "
    "the difference to the row's baseline, paired by seed; in brackets the paper's number, of its "
    "own data and training; a dash for what is not measured."
)


def picture(shown: Shown, at: int) -> str:
    """The file of a picture beside the page."""
    return f"{shown.name}-{at}.png"


def curve_png(shown: Shown) -> bytes | None:
    """A figure's curves with intervals; None where nothing is measured."""
    from matplotlib.figure import Figure

    panels = [
        (title, [(row.x, row.cells[at].ours) for row in shown.rows if row.x is not None])
        for at, title in enumerate(shown.columns)
    ]
    panels = [(title, [p for p in points if p[1] is not None]) for title, points in panels]
    panels = [(title, points) for title, points in panels if len(points) > 2]  # a curve
    if not panels:
        return None
    figure = Figure(figsize=(4 * len(panels), 3.2), layout="constrained")
    for axes, (title, points) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        xs = [x for x, _ in points]
        means = [one.mean for _, one in points if one is not None]
        margins = [(one.margin or 0.0) for _, one in points if one is not None]
        axes.errorbar(xs, means, yerr=margins, marker="o", capsize=3)
        axes.set_title(title)
        axes.set_xlabel(shown.axis or "")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def write_pages(
    tables: list[Shown], scale: str, folder: Path, title: str = "Reproduction"
) -> list[Path]:
    """A Markdown file for each table, and index.html with all of them."""
    written, sections = [], []
    for shown in tables:
        curve = curve_png(shown) if shown.axis else None
        text = markdown(shown, scale)
        images = [(name, file.read_bytes()) for name, file in shown.pictures]
        for at, (_, content) in enumerate(images):
            _write(folder / picture(shown, at), content)
        if curve is not None:
            _write(folder / f"{shown.name}.png", curve)
            text += f"\n![{shown.title}]({shown.name}.png)\n"
            images.append((shown.title, curve))
        path = folder / f"{shown.name}.md"
        _write(path, text.encode("utf-8"))
        written.append(path)
        uris = [(name, base64.b64encode(content).decode("ascii")) for name, content in images]
        sections.append((shown, uris))
    page = render(
        "reproduction.html",
        title=title,
        refresh=None,
        scale=scale,
        sections=sections,
        legend=LEGEND,
    )
    _write(folder / "index.html", page.encode("utf-8"))
    return [*written, folder / "index.html"]


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda aside: aside.write_bytes(content))
