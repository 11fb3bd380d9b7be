"""The page "Methods": the length of each method's file is as stated."""

import re

from lewel.methods.registry import method_names
from tests.docs.pages import ROOT


def test_the_lines_of_each_method_are_as_stated() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    table = page.partition("## Length, step time and memory")[2]
    stated = {name: int(lines) for name, lines in re.findall(r"\| `(\w+)` \| (\d+) \|", table)}
    files = {name: ROOT / "src" / "lewel" / "methods" / f"{name}.py" for name in method_names()}
    assert stated == {name: len(file.read_text().splitlines()) for name, file in files.items()}
