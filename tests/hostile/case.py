"""A case: a command line, what is hostile in it, and what is right."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

# refused  exit 2, one sentence, and no new or changed file.
# stops    exit 1 or 2 and one sentence; files that were written before it stopped may stay.
# runs     exit 0; `says` and `check` hold, no printed number is nan or inf.
# warns    as runs, and `says` is the warning; or it is refused, if the warning may be an error.
# clear    any of these: what matters is that no traceback is printed.
# signal   exit 128 + `signal`, after a save.
Right = Literal["refused", "stops", "runs", "warns", "clear", "signal"]
Check = Callable[[Path, str], str | None]
Prepare = Callable[[Path], None]

WORLD = "world"


@dataclass(frozen=True)
class Case:
    """One command line. `{name}` in a word is a fresh copy of that fixture in the case's folder."""

    words: tuple[str, ...]
    right: Right
    why: str  # what is hostile
    prepare: Prepare | None = None  # changes the case's folder before the command
    says: str = ""  # a pattern that the output must match
    check: Check | None = None  # -> what is wrong with the output or with a file
    signal: int = 0  # sent once `after` exists
    after: str = ""
    nobody: bool = False  # run without root's rights
    family: str = ""

    def named(self, family: str) -> "Case":
        return replace(self, family=family)

    def line(self) -> str:
        """The command line for people."""
        return "lewel " + " ".join(
            word if word and " " not in word and "\n" not in word else repr(word)
            for word in self.words
        )


def case(right: Right, line: str | Iterable[str], why: str, **more: object) -> Case:
    """A case from a line of words without spaces, or from a list of words."""
    words = line.split() if isinstance(line, str) else line
    return Case(tuple(words), right, why, **more)  # type: ignore[arg-type]


def bring(place: Path, name: str, new: str | None = None) -> Path:
    """Copy a fixture into a case's folder."""
    source, target = place.parent / WORLD / name, place / (new or name)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
    return target


def flipped(path: Path, where: float = 0.5) -> None:
    """Flip the bits of one byte, at a fraction of the file."""
    content = bytearray(path.read_bytes())
    content[min(len(content) - 1, int(where * len(content)))] ^= 0xFF
    path.write_bytes(content)
