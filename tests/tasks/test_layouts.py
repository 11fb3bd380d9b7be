"""Folders of images and masks, given to every command that takes images."""

import json
from pathlib import Path

import numpy as np
import pytest

from lewel.cli.main import run
from tests.data.dense.mask_layouts import make_folder
from tests.running import tiny_run, trained_once

NOTE = "set has images/ and masks/: the masks are not read as images."


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_once(tmp_path_factory, "layouts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("masks") / "set", {"cat": 12, "dog": 12})


def test_every_command_reads_the_images_only(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny_run(tmp_path / "run", "--epochs", "1", data=str(folder)) == 0
    assert NOTE in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "card.json").read_text())["images"] == 24
    file = tmp_path / "features.npz"
    assert run(["embed", str(trained), str(folder), "--out", str(file), "--workers", "0"]) == 0
    assert NOTE in capsys.readouterr().out
    with np.load(file) as stored:
        assert len(stored["path"]) == 24 and all(p.startswith("images/") for p in stored["path"])
    flags = ["--data", str(folder), "--out", str(tmp_path / "k"), "--workers", "0"]
    assert run(["knn", str(trained), *flags]) == 0
    assert NOTE in capsys.readouterr().out
    (result,) = json.loads((tmp_path / "k" / "results" / "knn.json").read_text())
    assert set(result["result"]["per_class"]) == {"cat", "dog"}
    assert run(["maps", str(trained), str(folder), "--out", str(tmp_path / "m")]) == 0
    assert NOTE in capsys.readouterr().out
    page = (tmp_path / "m" / "maps.html").read_text()
    assert "images/cat" in page and "masks/" not in page
    assert run(["pack", str(folder), str(tmp_path / "packed"), "--workers", "1"]) == 0
    assert NOTE in capsys.readouterr().out


def test_where_uses_the_masks_and_names_the_background(
    trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["where", str(trained), "--data", str(folder), "--accelerator", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "set has masks: objects of 24 images are all classes but '0', the first." in said
    assert "pointing game: the maximum lies on an object" in said


def test_where_gives_the_same_result_for_a_pack(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pack", str(folder), str(tmp_path / "packed"), "--workers", "0"]) == 0
    for data in (folder, tmp_path / "packed"):
        words = ["where", str(trained), "--data", str(data), "--recompute", "--accelerator", "cpu"]
        assert run(words) == 0
    assert "set has masks: objects of 24 images" in capsys.readouterr().out
    found = json.loads((trained / "results" / "where.json").read_text())
    one, other = (entry["result"] for entry in found[-2:])
    assert one["masks"] and one["data"] == other["data"] == "set"
    assert one["baselines"] == other["baselines"] and one["gain"] == other["gain"]
