"""A folder or file of a data set: on this machine (pathlib's Path), or in a pack."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, Self


class Place(Protocol):
    """What readers of annotated data use of pathlib's Path."""

    @property
    def name(self) -> str: ...

    @property
    def stem(self) -> str: ...

    @property
    def suffix(self) -> str: ...

    @property
    def parent(self) -> Self: ...

    def __truediv__(self, key: str, /) -> Self: ...

    def __lt__(self, other: Any, /) -> bool: ...

    def is_file(self) -> bool: ...

    def is_dir(self) -> bool: ...

    def glob(self, pattern: str) -> Iterator[Self]: ...

    def rglob(self, pattern: str) -> Iterator[Self]: ...

    def read_bytes(self) -> bytes: ...

    def resolve(self) -> Self: ...


def below(place: Place, root: Place) -> str:
    """The path of a place relative to a folder above it."""
    return str(place)[len(str(root)) :].lstrip("/") if str(root) != "." else str(place)


def read_text(file: Place, errors: str = "strict") -> str:
    """The text of a file, without a BOM; raises FileNotFoundError, UnicodeDecodeError."""
    return file.read_bytes().decode("utf-8-sig", errors).replace("\r\n", "\n")


def local(place: Place) -> Path | None:
    """The path of a place on this machine; None in a pack."""
    return place if isinstance(place, Path) else None


def is_hidden(path: str) -> bool:
    """Whether a file or one of its folders is hidden, or of macOS's own: the images of a folder
    do not count it, either.
    """
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))
