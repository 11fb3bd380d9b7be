"""Text files that list paths, paths and labels (CSV), or classes to keep."""

import csv
import os
import re
from io import StringIO
from pathlib import Path

from lewel.data.sources.files import Files
from lewel.data.sources.images import SUFFIXES
from lewel.errors import UserError, state_of
from lewel.files import user_path


def open_list(path: str, notes: list[str]) -> Files:
    """The images that a text file or a CSV lists, in its order."""
    if Path(path).suffix.lower() in SUFFIXES:
        raise UserError(f"{path} is one image: give the folder that holds it, or a list of paths.")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: expected a folder of images (unpack an archive first), "
            "a text file of paths or a CSV with the header path,label."
        ) from error
    except OSError as error:
        raise UserError(f"Cannot read {path} ({error.strerror}): make it readable.") from error
    is_csv = Path(path).suffix.lower() == ".csv"
    if is_csv:
        rows = _csv_rows(path, text, notes)
    else:
        lines = (line.strip() for line in text.split("\n"))
        rows = [(line, None) for line in lines if line and not line.startswith("#")]
    root = os.path.dirname(os.path.abspath(path))
    labels = _unique(path, root, rows)
    if not labels:
        raise UserError(f"{path} names no image: expected one path a line.")
    if len(labels) < len(rows):
        notes.append(f"{path} repeats {len(rows) - len(labels):,} paths: each is used once.")
    missing = [entry for entry in labels if not os.path.isfile(os.path.join(root, entry))]
    if missing:
        folders = [entry for entry in missing if os.path.isdir(os.path.join(root, entry))]
        what = "are folders" if len(folders) == len(missing) else "do not exist"
        hint = f"paths are taken relative to {root}."
        if not is_csv and rows[0][0].replace(";", ",").lower().startswith("path,"):
            hint = "a list with labels is a CSV, with commas and a name that ends in .csv."
        raise UserError(
            f"{path} names {len(missing):,} files of {len(labels):,} that {what} "
            f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}): {hint}"
        )
    name, names = Path(path).stem, {label for label in labels.values() if label is not None}
    if not names:
        if is_csv:
            notes.append(f"{path} has no column label: its images have no labels.")
        return Files(root, list(labels), name=name)
    _refuse_spellings(path, names)
    # Numbers are sorted as numbers, so that label 3 of 0 to 99 is class 3.
    numbers = all(label.isdecimal() for label in names)
    classes = tuple(sorted(names, key=lambda label: (int(label) if numbers else 0, label)))
    index = {label: i for i, label in enumerate(classes)}
    encoded = [index[label] for label in labels.values() if label is not None]
    return Files(root, list(labels), name=name, labels=encoded, classes=classes)


def read_classes(path: str) -> list[str]:
    """The class names of a text file, one a line, each once."""
    shown, path = path, str(user_path(path))
    expected = "expected a text file with one class name a line"
    if not os.path.isfile(path):
        raise UserError(f"The class list {shown} {state_of(path)}: {expected}.")
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise UserError(f"The class list {shown} is not UTF-8 text: {expected}.") from error
    except OSError as error:
        raise UserError(f"Cannot read {shown} ({error.strerror}): make it readable.") from error
    names = list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not names:
        raise UserError(f"The class list {shown} is empty: {expected}.")
    return names


def _refuse_spellings(path: str, names: set[str]) -> None:
    """Raise UserError for labels that differ only in their spelling, and for a missing value."""
    known: dict[str, str] = {}
    for label in sorted(names):
        if label.lower() == "nan":
            raise UserError(f"{path} has the label {label}, a missing value: label these images.")
        plain = re.sub(r"^(\d+)\.0*$", r"\1", label.casefold())  # pandas writes 1 as 1.0
        other = known.setdefault(plain, label)
        if other != label:
            raise UserError(f"{path} has the labels {other} and {label}: spell a class in one way.")


def _csv_rows(path: str, text: str, notes: list[str]) -> list[tuple[str, str | None]]:
    """(path, label) of each row; the label is None where the CSV has no such column."""
    reader = csv.DictReader(StringIO(text, newline=""), skipinitialspace=True, strict=True)
    table, read = [], 0  # lines
    try:
        header = [column.strip().lower() for column in reader.fieldnames or ()]
        reader.fieldnames = header
        if "path" not in header:
            raise UserError(
                f"{path} has no column path: its first line is '{','.join(header)}', expected "
                "path,label."
            )
        for column in ("path", "label"):
            if header.count(column) > 1:
                raise UserError(f"{path} has the column {column} twice: keep one of them.")
        if unused := [column for column in header if column not in ("path", "label", "")]:
            notes.append(f"{path} has columns that are not used: {', '.join(unused[:5])}.")
        read = reader.line_num
        for row in reader:
            if any(more.strip() for more in row.get(None, ())):
                raise UserError(
                    f"{path} has more fields than its {len(header)} columns in line "
                    f"{reader.line_num} ({row['path']}): quote a field that holds a comma."
                )
            table += [row] * bool((row["path"] or "").strip())
            read = reader.line_num
    except csv.Error as error:
        raise UserError(
            f"{path} is no CSV from line {read + 1} on ({error}): close each quote, and double "
            "one inside a field."
        ) from error
    labels = [(row.get("label") or "").strip() for row in table]
    if "label" not in header:
        return [(row["path"].strip(), None) for row in table]
    if blank := [row["path"] for row, label in zip(table, labels, strict=True) if not label]:
        raise UserError(
            f"{path} has {len(blank):,} rows of {len(table):,} without a label (the first is "
            f"{blank[0]}): label them, or leave out the column label."
        )
    return [(row["path"].strip(), label) for row, label in zip(table, labels, strict=True)]


def _unique(path: str, root: str, rows: list[tuple[str, str | None]]) -> dict[str, str | None]:
    """Label by path, each file once by its first spelling, in the order of the rows."""
    labels: dict[str, str | None] = {}
    spelt: dict[str, str] = {}
    for entry, label in rows:
        first = spelt.setdefault(
            os.path.normpath(os.path.join(root, entry)), os.path.normpath(entry)
        )
        if labels.setdefault(first, label) != label:
            also = "" if entry == first else f" ({first})"
            raise UserError(
                f"{path} labels {entry}{also} both {labels[first]} and {label}: keep one row."
            )
    return labels
