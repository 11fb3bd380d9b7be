"""The order of a folder's images, against a sort of all paths."""

import os
from pathlib import Path

import numpy as np
import pytest

from lewel.data.sources import scan as module
from lewel.data.sources.images import SUFFIXES
from lewel.data.sources.scan import scan, suffix_of

WORDS = ("a", "a-", "a.b", "a!", "B", "é", "a0", "\U0001f600", "\uffee", os.fsdecode(b"\xe9x"))


def plant(folder: Path, draw: np.random.Generator, depth: int = 0) -> None:
    """Folders and images whose names are easily sorted wrongly."""
    folder.mkdir(exist_ok=True)
    for word in WORDS:
        if depth < 2 and draw.random() < 0.4:
            plant(folder / word, draw, depth + 1)
        if draw.random() < 0.5:
            (folder / (word + ".jpg")).touch()
        if draw.random() < 0.2:
            (folder / (word + ".txt")).touch()


def all_paths(root: Path, folders: tuple[str, ...] = ("",)) -> list[str]:
    """The paths of all images by os.walk, sorted."""
    found = []
    for top in folders:
        for current, _, files in os.walk(root / top):
            paths = (os.path.relpath(os.path.join(current, file), root) for file in files)
            found += [path for path in paths if os.path.splitext(path)[1] in SUFFIXES]
    return sorted(found)


def scanned(root: Path, folders: tuple[str, ...] = ("",)) -> list[str]:
    parts = [os.fsdecode(paths[:-1]).split("\0") for _, paths in scan(str(root), folders).paths()]
    return [path for part in parts for path in part]


@pytest.mark.parametrize("seed", range(4))
def test_paths_come_as_if_all_were_sorted(tmp_path: Path, seed: int) -> None:
    plant(tmp_path / "tree", np.random.default_rng(seed))
    expected = all_paths(tmp_path / "tree")
    assert len(expected) > 30 and scanned(tmp_path / "tree") == expected
    assert scan(str(tmp_path / "tree"), ("",)).count == len(expected)
    tops = tuple(entry.name for entry in os.scandir(tmp_path / "tree") if entry.is_dir())
    assert scanned(tmp_path / "tree", tops) == all_paths(tmp_path / "tree", tops)


def test_links_to_folders_come_after_the_folders(tmp_path: Path) -> None:
    (tmp_path / "root" / "z").mkdir(parents=True)
    (tmp_path / "away" / "deep").mkdir(parents=True)
    for name in ("root/m.jpg", "root/z/1.jpg", "away/2.jpg", "away/deep/3.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "root" / "a").symlink_to("z")  # a second way to z
    (tmp_path / "root" / "loop").symlink_to(".")
    (tmp_path / "root" / "b").symlink_to("../away")
    (tmp_path / "root" / "c").symlink_to("../away/deep")
    expected = ["b/2.jpg", "b/deep/3.jpg", "m.jpg", "z/1.jpg"]
    assert scanned(tmp_path / "root") == expected


@pytest.mark.parametrize("name", ["a.JPG", "a", "a.b.png", "a.", "a..jpg", "a b.tar.gz"])
def test_suffixes_are_those_of_splitext(name: str) -> None:
    assert suffix_of(name) == os.path.splitext(name)[1].lower()


def test_a_long_scan_prints_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/1.jpg", "b/2.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    monkeypatch.setattr(module, "PLAIN_SECONDS", 0.0)
    scan(str(tmp_path), ("",))
    assert "2 images in 3 folders so far" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    scan(str(tmp_path), ("",))
    assert capsys.readouterr().err == ""
