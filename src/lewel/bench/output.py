"""Results as JSON, as a Markdown table, and as a table in the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lewel.bench.machine import machine_line
from lewel.errors import UserError
from lewel.files import mark, refuse_foreign, refuse_unwritable, write_atomically, write_marked
from lewel.progress import plain_console

Rows = Sequence[Sequence[str]]
WIDEST = 132  # columns of text of the widest table


def files_of(folder: Path, name: str) -> tuple[Path, Path]:
    """The files of results of this name: JSON, and a plot."""
    return folder / f"{name}.json", folder / f"{name}.png"


def check_output(folder: Path, name: str, overwrite: bool) -> None:
    """Raise UserError if results of this name cannot be written to the folder."""
    if Path(name).name != name:
        raise UserError(f"--name {name}: expected a name without a folder; --out is the folder.")
    refuse_unwritable(folder)
    for file in files_of(folder, name):
        refuse_foreign(file, "bench", overwrite)


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write a result as indented JSON."""
    text = json.dumps({"writer": mark("bench"), **result}, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_marked(path, "bench", lambda temp: temp.write_text(text, encoding="utf-8"))


def markdown_table(header: Sequence[str], rows: Rows) -> str:
    """A Markdown table, numbers right-aligned."""
    rule = ["---", *["--:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def print_table(console: Console, header: Sequence[str], rows: Rows) -> None:
    """Print the table in the terminal; if that is too narrow, lines wrap and nothing is cut."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    plain_console(file=console.file, width=max(console.width, WIDEST)).print(table)


def put_section(path: Path, title: str, body: str, machine: dict[str, Any]) -> None:
    """Write a section between its markers in a Markdown file, replacing an older one."""
    begin, end = f"<!-- begin: {title} -->", f"<!-- end: {title} -->"
    section = f"{begin}\n### {title}\n\n{body}\n\n{machine_line(machine)}\n{end}\n"
    before = path.read_text(encoding="utf-8") if path.exists() else "# Performance\n"
    if begin in before and end in before:
        head, _, rest = before.partition(begin)
        text = head + section + rest.partition(end)[2].removeprefix("\n")
    else:
        text = before.rstrip("\n") + "\n\n" + section
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temp: temp.write_text(text, encoding="utf-8"))
