"""Atomic writes."""

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a temporary file beside `path`, fsync it and rename it to `path`."""
    temp = path.with_name(path.name + ".partial")
    try:
        write(temp)
        with open(temp, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)
