"""Reads a run folder for its page, during training or after it; what cannot be read is listed."""

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lewel.config.references import find_reference
from lewel.config.resolve import resolve
from lewel.config.settings import yaml_text
from lewel.data.pack.urls import shown
from lewel.errors import RunError, UserError
from lewel.files import is_cut
from lewel.pages.gallery import Gallery
from lewel.pages.neighbours import Neighbours
from lewel.pages.reference import Reference, departures
from lewel.pages.run_data import Picture, Result, RunData
from lewel.pages.text import as_text, environment, facts, flat, headline, highlights, progress
from lewel.tasks.maps import gallery_of_run
from lewel.tasks.results import COLUMNS, Row, numbers_of, result_rows
from lewel.train.metrics import MetricsReader
from lewel.train.run_folder import RunFolder
from lewel.train.summary import Summary

Galleries = Callable[[Path], Gallery | None]
Finds = Callable[[Path], Neighbours | None]
Computed = TypeVar("Computed")
MISTAKES = 5  # confusions that are shown of a result


def read_run(
    run: Path,
    galleries: Galleries = gallery_of_run,
    finds: Finds = lambda run: None,
    metrics: MetricsReader | None = None,
) -> RunData:
    """The report data of a run, during training or after it; neighbours are slow to find.

    A reader of its metrics that is given reads only their new lines.
    """
    return Reader(run, metrics).data(galleries, finds)


class Reader:
    """Reads a run folder and collects what could not be read in `problems`."""

    def __init__(self, run: Path, metrics: MetricsReader | None = None) -> None:
        self.run, self.folder = run, RunFolder(run)
        self.metrics = metrics or MetricsReader(self.folder.metrics)
        self.problems: list[str] = []

    def data(self, galleries: Galleries, finds: Finds) -> RunData:
        """The report data."""
        text = self.text(self.folder.config)
        config, card = self.config(text), self.card()
        place = config.get("data")
        if isinstance(place, str) and shown(place) != place:  # pages are for others, too
            config = {**config, "data": shown(place)}
            text = yaml_text(config)
        metrics = self.summary()
        reference = self.reference(config, card)
        return RunData(
            name=self.run.resolve().name,
            path=str(self.run),
            headline=headline(config, card),
            progress=progress(config, metrics, self.age()),
            command=self.command() if text else "",
            config_text=text,
            highlights=highlights(metrics),
            facts=facts(config, card, metrics),
            settings={key: as_text(value) for key, value in flat(config).items()},
            metrics=metrics,
            results=self.results(),
            environment=environment(card),
            corrupt_images=tuple(
                (str(line.get("image", "?")), str(line.get("reason", "?")))
                for line in self.corrupt_images()
            ),
            views=self.content(self.folder.views),
            predictions=self.predictions(),
            gallery=self.computed("maps", galleries),
            neighbours=self.computed("nearest neighbours", finds),
            reference=reference,
            departures=tuple(departures(reference, metrics)) if reference else (),
            problems=tuple(self.problems),
        )

    def text(self, file: Path) -> str:
        """A text file; empty where there is none."""
        content = self.content(file)
        return "" if content is None else content.decode("utf-8", "replace")

    def content(self, file: Path) -> bytes | None:
        """A file's bytes; None where there is none (a run may be about to write it)."""
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"{file.name} cannot be read ({error.strerror}).")
            return None

    def config(self, text: str) -> dict[str, Any]:
        """The settings of config.yaml, and a problem if this version does not accept them."""
        try:
            config = yaml.safe_load(text) if text else {}
        except yaml.YAMLError:
            config = None
        if not isinstance(config, dict):
            self.problems.append("config.yaml cannot be read as keys and values.")
            return {}
        if is_cut(text):
            self.problems.append("config.yaml is damaged: its end is missing.")
        if config:
            try:
                resolve(config, {})
            except UserError as error:
                self.problems.append(
                    f"config.yaml was written by another version and cannot be used unchanged: "
                    f"{error}"
                )
        return config

    def reference(self, config: dict[str, Any], card: dict[str, Any]) -> Reference | None:
        """The reference of the recipe that the run follows, if there is one."""
        try:
            return find_reference(resolve(config, {}), card) if config else None
        except UserError:  # reported already, where the settings were read
            return None

    def card(self) -> dict[str, Any]:
        """The content of card.json; empty before the first checkpoint."""
        text = self.text(self.folder.card)
        try:
            card = json.loads(text) if self.folder.card.exists() else {}
        except ValueError:
            card = None
        if not isinstance(card, dict):
            self.problems.append("card.json cannot be read.")
            return {}
        return card

    def lines(self, file: Path) -> list[dict[str, Any]]:
        """The lines of a .jsonl file; the last one may be half-written."""
        content, found, damaged = (self.content(file) or b"").split(b"\n"), [], 0
        for index, line in enumerate(content):
            try:
                parsed = json.loads(line) if line.strip() else {}
            except ValueError:
                damaged += index < len(content) - 1  # an incomplete last line is being written
                continue
            if isinstance(parsed, dict) and parsed:
                found.append(parsed)
        if damaged:
            self.problems.append(f"{damaged} damaged lines of {file.name} were left out.")
        return found

    def summary(self) -> Summary:
        """The summary of metrics.jsonl."""
        try:
            summary = self.metrics.update()
            self.metrics.keep_long()
        except OSError as error:
            self.problems.append(f"metrics.jsonl cannot be read ({error.strerror}).")
            return Summary()
        if self.metrics.reading:
            size = self.folder.metrics.stat().st_size / 1e6
            self.problems.append(
                f"metrics.jsonl ({size:,.0f} MB) is being read: its curves come with a later page."
            )
        elif self.metrics.damaged:
            self.problems.append(
                f"{self.metrics.damaged} damaged lines of metrics.jsonl were left out."
            )
        return summary

    def corrupt_images(self) -> list[dict[str, Any]]:
        """The list of corrupt images, also by version 0.1's name."""
        old = self.run / "bad_images.jsonl"
        return self.lines(self.folder.corrupt_images) or self.lines(old)

    def results(self) -> tuple[Result, ...]:
        """All results, with the paper's numbers."""
        try:
            paper = numbers_of(self.run)
        except UserError:  # reported already, where the settings were read
            paper = {}
        try:
            return tuple(result(row) for row in result_rows(self.run, paper))
        except (UserError, RunError) as error:
            self.problems.append(str(error))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            self.problems.append(f"An entry of results/ is damaged ({reason}): all are left out.")
        return ()

    def predictions(self) -> tuple[Picture, ...]:
        """The pictures that segment and detect have written."""
        files = sorted((self.run / "predictions").glob("*.png"))
        pairs = [(file.name, self.content(file)) for file in files]
        return tuple(Picture(name, content) for name, content in pairs if content is not None)

    def computed(self, what: str, compute: Callable[[Path], Computed | None]) -> Computed | None:
        """Something computed from the run's data, or None with a problem where it cannot be."""
        try:
            return compute(self.run)
        except (UserError, RunError) as error:
            self.problems.append(f"The {what} could not be shown: {error}")
            return None

    def command(self) -> str:
        """The command that repeats the run."""
        again = self.run.with_name(self.run.resolve().name + "-again")
        words = ("pretrain", "--recipe", str(self.folder.config), "--out", str(again))
        return shlex.join(("lewel", *words))  # no path of this Python: pages are opened elsewhere

    def age(self) -> float | None:
        """Seconds since the last step was written."""
        try:
            return time.time() - self.folder.metrics.stat().st_mtime
        except OSError:
            return None


def result(row: Row) -> Result:
    """A result as a page shows it."""
    found = row.result
    classes = found.get("classes", [])  # older results do not name classes without an image
    wrong = [entry for entry in found.get("confusion", []) if classes and entry[0] != entry[1]]
    wrong = sorted(wrong, key=lambda entry: -entry[2])[:MISTAKES]
    sweep = ", ".join(f"{k}: {value:.1%}" for k, value in found.get("sweep", {}).items())
    return Result(
        cells=dict(zip(COLUMNS, row.cells, strict=True)),
        per_class={name: float(value) for name, value in found.get("per_class", {}).items()},
        mistakes=tuple(
            f"{classes[true]} predicted as {classes[predicted]} ({count:,})"
            for true, predicted, count in wrong
        ),
        sweep=sweep,
    )
