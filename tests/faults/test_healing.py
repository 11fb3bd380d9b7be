"""A finished run restores what its checkpoint can restore; damaged files are named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from lewel.cli.main import run
from lewel.config.configure import configure
from lewel.errors import RunError, UserError
from lewel.evaluate.results import Results
from lewel.files import FIRST_LINE, LAST_LINE
from lewel.interop.lookup import folder_for
from tests.running import metrics, tiny_run

FILES = ["backbone.safetensors", "heads.safetensors", "card.json", "views.png", "config.yaml"]


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[int(0.7 * len(content))] ^= 0xFF
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut": half,
    "empty": lambda path: path.write_bytes(b""),
    "random": lambda path: path.write_bytes(bytes(range(256))),
    "a list": lambda path: path.write_text("[1, 2]"),
    "changed": flipped,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert tiny_run(out, "--epochs", "1") == 0
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_finished_run_is_restored(
    damage: str, finished: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All files at once; card.json is made anew, because no other file has it."""
    for name in FILES:
        if (damage, name) not in {("changed", "card.json"), ("changed", "config.yaml")}:
            DAMAGES[damage](copied / name)
    assert tiny_run(copied, "--epochs", "1") == 0
    said = capsys.readouterr().out
    assert "This run is finished" in said and "restored from the checkpoint of step 4" in said
    for name in ("backbone.safetensors", "heads.safetensors", "views.png"):
        assert f"{name} (" in said.split("restored")[1]
        if name.endswith("safetensors"):
            new, old = load_file(copied / name), load_file(finished / name)
            assert all(bool((new[key] == old[key]).all()) for key in old)
        kept = copied / f"{name}.damaged"
        assert kept.exists() == (damage != "missing")
    assert (copied / "views.png").read_bytes() == (finished / "views.png").read_bytes()
    assert (copied / "config.yaml").read_text() == (finished / "config.yaml").read_text()
    assert json.loads((copied / "card.json").read_text())["steps"] == 4
    assert tiny_run(copied, "--epochs", "1") == 0
    assert f"intact: {', '.join(FILES)}\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", FILES)
def test_one_lost_file_comes_back_as_it_was(
    name: str, finished: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / name).unlink()
    assert tiny_run(copied, "--epochs", "1") == 0
    said = capsys.readouterr().out
    others = [other for other in FILES if other != name]
    assert f"intact: {', '.join(others)}; restored" in said and f"{name} (missing)" in said
    for other in FILES:
        assert (copied / other).read_bytes() == (finished / other).read_bytes()


def test_metrics_that_are_damaged_do_not_stop_a_run(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    damaged = [lines[0], "[1, 2]\n", "\x00\n", *lines[1:3], '{"loss": 1}\n', *lines[3:]]
    (copied / "metrics.jsonl").write_text("".join(damaged))
    (copied / "card.json").unlink()
    (copied / "backbone.safetensors").unlink()
    (copied / "heads.safetensors").unlink()
    assert tiny_run(copied, "--epochs", "1") == 0
    assert "metrics.jsonl" not in capsys.readouterr().out.split("the weights are in")[0]
    assert tiny_run(copied, "--epochs", "2") == 0
    assert [line["step"] for line in metrics(copied)] == list(range(9))
    (copied / "metrics.jsonl").write_text("".join(lines[:3]))
    capsys.readouterr()
    assert tiny_run(copied, "--epochs", "2") == 0
    assert "metrics.jsonl lacks 6 lines" in capsys.readouterr().out


def test_a_trained_backbone_is_not_trained_over(
    finished: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copied / "checkpoints")
    for damage in ("", "cut"):
        if damage:
            DAMAGES[damage](copied / "backbone.safetensors")
        before = (copied / "backbone.safetensors").read_bytes()
        assert tiny_run(copied, "--epochs", "1") == 2
        said = capsys.readouterr().err
        assert "trained backbone and no checkpoint" in said
        assert "another --out" in said and f"--init {copied}" in said
        assert (copied / "backbone.safetensors").read_bytes() == before


def test_a_cut_config_is_named_and_an_edited_one_is_used(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = copied / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    assert lines[0] == f"{FIRST_LINE}\n" and lines[-1] == f"{LAST_LINE}\n"
    recipe = tmp_path / "recipe.yaml"
    for count in range(1, len(lines)):
        recipe.write_text("".join(lines[:count]))
        with pytest.raises(UserError, match="is damaged: its last line"):
            configure(None, str(recipe), {})
    recipe.write_text(lines[0][:9])
    with pytest.raises(UserError, match="is damaged"):
        configure(None, str(recipe), {})
    edited = "".join(lines).replace("seed: 0", "seed: 5")
    recipe.write_text(edited + "# mine\n")
    assert configure(None, str(recipe), {}).seed == 5
    recipe.write_text("".join(lines[1:-1]))  # as version 0.1 wrote it
    assert configure(None, str(recipe), {}).seed == 0
    config.write_text("".join(lines[:-3]))
    for words in (["maps", str(copied), "scenes"], ["pretrain", "--recipe", str(config)]):
        assert run(words) == 2
        assert "config.yaml is damaged: its last line" in capsys.readouterr().err
    assert run(["report", str(copied)]) == 0
    assert "config.yaml is damaged" in (copied / "report.html").read_text()
    shutil.rmtree(copied / "checkpoints")
    assert tiny_run(copied, "--epochs", "1") == 2
    assert "config.yaml is damaged" in capsys.readouterr().err


def test_a_cut_config_of_a_stopped_run_is_restored(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "checkpoints" / "step-000000004.pt").unlink()
    text = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(text[: text.index("head:")])
    assert tiny_run(copied, "--epochs", "1", "--seed", "3") == 2  # the checkpoint has the settings
    assert "seed: 0 -> 3" in capsys.readouterr().err
    assert tiny_run(copied, "--epochs", "1") == 0
    assert "config.yaml was damaged" in capsys.readouterr().out
    assert (copied / "config.yaml").read_text() == text


BAD_RESULTS = ["", "[", "{}", "4", "[1, 2]", "[[]]", '[{"settings": 1, "result": {}}]', '["ab"]']


@pytest.mark.parametrize("text", [*BAD_RESULTS, '[{"a": 1}]', '[{"settings": {}, "result": {}}]'])
def test_damaged_results_are_named(
    text: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copied / "results" / "knn.json"
    file.parent.mkdir()
    file.write_text(text)
    assert run(["results", str(copied)]) == 1
    said = capsys.readouterr().err
    assert str(file) in said and "delete it to evaluate again" in said
    if not text.startswith('[{"settings": {}'):
        with pytest.raises(RunError, match="is damaged"):
            Results(copied).keep("knn", {}, {})
    assert file.read_text() == text
    if text == "[1, 2]":
        assert run(["report", str(copied)]) == 0
        assert "knn.json is damaged" in (copied / "report.html").read_text()


@pytest.mark.parametrize("damage", ["cut", "empty", "random", "a list"])
def test_no_command_fails_on_a_damaged_card(
    damage: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[damage](copied / "card.json")
    assert run(["report", str(copied)]) == 0
    assert "card.json cannot be read" in (copied / "report.html").read_text()
    assert tiny_run(copied, "--epochs", "1") == 0
    assert "card.json (damaged)" in capsys.readouterr().out


def test_results_of_a_run_without_its_card_stay_in_the_run(copied: Path, tmp_path: Path) -> None:
    (copied / "card.json").unlink()
    assert folder_for(copied) == copied
    assert folder_for(copied / "backbone.safetensors") == copied
    (copied / "config.yaml").unlink()
    assert folder_for(copied) == copied
    other = Path(shutil.copytree(copied, tmp_path / "other"))
    files = {folder_for(folder / "backbone.safetensors") for folder in (copied, other)}
    assert files == {Path("runs/run"), Path("runs/other")}
    words = ["--data", "scenes", "--limit", "60", "--workers", "0", "--accelerator", "cpu"]
    assert run(["knn", str(copied), *words]) == 0
    assert (copied / "results" / "knn.json").exists()
