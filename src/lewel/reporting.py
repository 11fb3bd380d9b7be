"""A run folder, read for its page: what is missing or damaged is said there, and stops nothing."""

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from lewel.comparing import COLUMNS, Row, numbers_of, result_rows
from lewel.config import resolve
from lewel.errors import RunError, UserError
from lewel.files import write_atomically
from lewel.looking import gallery_of_run
from lewel.report.gallery import Gallery
from lewel.report.page import report_page
from lewel.report.told import Picture, Result, ToldRun
from lewel.report.words import (
    environment,
    facts,
    flat,
    headline,
    highlights,
    progress,
    word,
)
from lewel.train.folder import RunFolder

Look = Callable[[Path], Gallery | None]
MISTAKES = 5  # confusions that are told of a result


def write_report(runs: list[Path], out: Path | None, look: Look = gallery_of_run) -> Path:
    """Write the page of some runs; where it is."""
    for run in runs:
        if not run.is_dir():
            raise UserError(f"{run} does not exist: expected a run folder.")
        if not RunFolder(run).config.exists() and not RunFolder(run).metrics.exists():
            raise UserError(f"{run} holds no run: expected a folder that `lewel pretrain` wrote.")
    out = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: expected a file, such as {out / 'report.html'}.")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist.")
    page = report_page([read_run(run, look) for run in runs])
    # A file's name may hold bytes that are no text.
    write_atomically(out, lambda aside: aside.write_bytes(page.encode("utf-8", "replace")))
    return out


def read_run(run: Path, look: Look = gallery_of_run) -> ToldRun:
    """All that a page tells of a run, while it trains or after."""
    return Reader(run).told(look)


class Reader:
    """Reads a run folder, and remembers what it could not read."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, RunFolder(run)
        self.problems: list[str] = []

    def told(self, look: Look) -> ToldRun:
        """The run."""
        text = self.text(self.folder.config)
        config, card = self.config(text), self.card()
        lines = self.lines(self.folder.metrics)
        return ToldRun(
            name=self.run.resolve().name,
            path=str(self.run),
            headline=headline(config, card),
            progress=progress(config, lines, self.age()),
            command=self.command() if text else "",
            config_text=text,
            highlights=highlights(lines),
            facts=facts(config, card, lines),
            settings={key: word(value) for key, value in flat(config).items()},
            metrics=lines,
            results=self.results(),
            environment=environment(card),
            bad_images=tuple(
                (str(line.get("image", "?")), str(line.get("reason", "?")))
                for line in self.lines(self.folder.bad_images)
            ),
            views=self.content(self.folder.views),
            predictions=self.predictions(),
            gallery=self.gallery(look),
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
        """The settings as they were written, and a word where this version refuses them."""
        try:
            config = yaml.safe_load(text) if text else {}
        except yaml.YAMLError:
            config = None
        if not isinstance(config, dict):
            self.problems.append("config.yaml cannot be read as keys and values.")
            return {}
        if config:
            try:
                resolve(config, {})
            except UserError as error:
                self.problems.append(
                    f"config.yaml was written by another version and can't be repeated as it is: "
                    f"{error}"
                )
        return config

    def card(self) -> dict[str, Any]:
        """What the weights say of themselves; empty before the first checkpoint."""
        text = self.text(self.folder.card)
        try:
            card = json.loads(text) if text else {}
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
                damaged += index < len(content) - 1  # what has no end yet is being written
                continue
            if isinstance(parsed, dict) and parsed:
                found.append(parsed)
        if damaged:
            self.problems.append(f"{damaged} damaged lines of {file.name} were left out.")
        return found

    def results(self) -> tuple[Result, ...]:
        """All results, beside the paper's numbers."""
        try:
            paper = numbers_of(self.run)
        except UserError:  # said already, where the settings were read
            paper = {}
        try:
            return tuple(result(row) for row in result_rows(self.run, paper))
        except (UserError, RunError) as error:
            self.problems.append(str(error))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            reason = f"{type(error).__name__}: {error}"
            self.problems.append(f"results/ holds what this version cannot read ({reason}).")
        return ()

    def predictions(self) -> tuple[Picture, ...]:
        """Pictures that the dense tasks have left."""
        files = sorted((self.run / "predictions").glob("*.png"))
        pairs = [(file.name, self.content(file)) for file in files]
        return tuple(Picture(name, content) for name, content in pairs if content is not None)

    def gallery(self, look: Look) -> Gallery | None:
        """The maps, where they can be had: a page without them is still a page."""
        try:
            return look(self.run)
        except (UserError, RunError) as error:
            self.problems.append(f"The maps could not be shown: {error}")
            return None

    def command(self) -> str:
        """What to type to train the same again."""
        again = self.run.with_name(self.run.resolve().name + "-again")
        words = ("pretrain", "--recipe", str(self.folder.config), "--out", str(again))
        return shlex.join(("lewel", *words))  # no path of this machine: pages travel

    def age(self) -> float | None:
        """Seconds since the run wrote a step."""
        try:
            return time.time() - self.folder.metrics.stat().st_mtime
        except OSError:
            return None


def result(row: Row) -> Result:
    """A result as a page shows it."""
    answer = row.answer
    classes = answer.get("classes", [])  # older answers do not name those without an image
    wrong = [entry for entry in answer.get("confusion", []) if classes and entry[0] != entry[1]]
    wrong = sorted(wrong, key=lambda entry: -entry[2])[:MISTAKES]
    sweep = ", ".join(f"{k}: {share:.1%}" for k, share in answer.get("sweep", {}).items())
    return Result(
        cells=dict(zip(COLUMNS, row.cells, strict=True)),
        per_class={name: float(share) for name, share in answer.get("per_class", {}).items()},
        mistakes=tuple(
            f"{classes[true]} taken for {classes[said]} ({count:,})" for true, said, count in wrong
        ),
        sweep=sweep,
    )
