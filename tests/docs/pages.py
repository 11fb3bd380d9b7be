"""The documents: README.md, CONTRIBUTING.md and docs/*.md, and the code blocks in them."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of code."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    """All fenced blocks of all pages, in order."""
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text[: match.start()].count("\n") + 1
            found.append(Block(str(path.relative_to(ROOT)), line, match[1], match[2]))
    return found


def commands() -> dict[str, tuple[str, list[str]]]:
    """Every different shell command -> where it stands first, and its words."""
    found: dict[str, tuple[str, list[str]]] = {}
    for block in blocks():
        if block.language != "sh":
            continue
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            words = shlex.split(line, comments=True)
            if words:
                found.setdefault(shlex.join(words), (f"{block.page}:{number}", words))
    return found
