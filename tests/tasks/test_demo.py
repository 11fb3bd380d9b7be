"""`lewel demo`, with far fewer images and steps than a user's."""

from pathlib import Path

import pytest

from lewel.cli.main import run
from lewel.config.recipes import command_recipe
from lewel.errors import UserError
from lewel.tasks import demo

FEW = {"limit": 64, "workers": 0, "epochs": 1, "knn": {"every": 1, "bank": 40, "queries": 40}}


def tiny_recipe(command: str, name: str) -> dict[str, object]:
    return {**command_recipe(command, name), "limit": 200, "epochs": 1, "batch_size": 8}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SETTINGS", FEW)
    monkeypatch.setattr(demo, "command_recipe", tiny_recipe)


@pytest.mark.usefixtures("small")
def test_the_demo_ends_with_its_numbers_and_a_second_one_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    broken = pytest.MonkeyPatch()

    def fails(*_: object) -> None:
        raise UserError("interrupted here")

    broken.setattr(demo, "finetune", fails)
    assert run(["demo", "--out", str(out)]) == 2  # ends after pre-training
    broken.undo()
    trained = (out / "backbone.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    assert run(["demo", "--out", str(out)]) == 0  # continues from there
    said = capsys.readouterr().out
    assert (out / "backbone.safetensors").stat().st_mtime_ns == trained
    assert "no labels used in training" in said and "fine-tuned with" in said
    assert "done before" not in said and "pretrain photos/ --budget 1h" in said
    assert (out / "report.html").is_file() and (out / "maps").is_dir()

    (out / "report.html").unlink()
    assert run(["demo", "--out", str(out)]) == 0
    assert "done before" not in capsys.readouterr().out
    page = (out / "report.html").stat().st_mtime_ns

    monkeypatch.setattr(demo, "report", fails)
    monkeypatch.setattr(demo, "maps", fails)
    assert run(["demo", "--out", str(out)]) == 0
    assert "All of it was done before" in capsys.readouterr().out
    assert (out / "report.html").stat().st_mtime_ns == page
    assert run(["demo", "--out", str(out), "--seed", "-1"]) == 2
    assert run(["demo", "--out", str(out), "--seed", "3"]) == 2  # another run's folder


@pytest.mark.parametrize("seed", ["1.5", "-1", "words", str(2**64)])
def test_a_seed_that_is_none_is_refused(
    seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--out", str(tmp_path / "demo"), "--seed", seed]) == 2
    assert "seed" in capsys.readouterr().err and not (tmp_path / "demo").exists()
