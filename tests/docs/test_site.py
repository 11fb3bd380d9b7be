"""The site builds without warnings, every internal link exists, and nothing else is loaded."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("zensical")


def build(folder: Path) -> "subprocess.CompletedProcess[str]":
    """A copy of the documents, built and checked as `make docs` does."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return done
    check = [sys.executable, str(ROOT / "docs" / "check_links.py"), "site"]
    return subprocess.run(check, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("zensical.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    return tmp_path


def test_the_site_is_whole(copy: Path) -> None:
    done = build(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in (copy / "site").glob("*.html")} >= pages
    menu = (copy / "zensical.toml").read_text()
    assert all(f'"{page}.md"' in menu for page in pages)
    assert "lewel.api.pretrain" in (copy / "site" / "api.html").read_text()


@pytest.mark.parametrize(
    "line",
    [
        "[a page](nowhere.md)",
        "[an anchor](index.md#nowhere)",
        "![a picture](images/nowhere.png)",
        '<script src="https://example.com/x.js"></script>',
    ],
)
def test_a_mistake_fails_the_build(copy: Path, line: str) -> None:
    with (copy / "docs" / "data.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{line}\n")
    assert build(copy).returncode != 0
