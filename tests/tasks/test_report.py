"""`lewel report`: the page of a real run folder, also with missing or damaged files."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from lewel.cli.main import run
from lewel.evaluate.results import Results
from lewel.evaluate.scores import accuracy
from lewel.tasks.report import read_run, report
from tests.pages.making import NASTY, picture, random_gallery
from tests.running import metrics, tiny_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reported") / "tiny"
    few = ("--knn.every", "1", "--knn.bank", "16", "--knn.queries", "16", "--knn.neighbours", "5")
    assert tiny_run(out, "--epochs", "1", *few) == 0
    words = ["--data", "scenes", "--limit", "100", "--workers", "0", "--accelerator", "cpu"]
    assert run(["knn", str(out), *words]) == 0
    return out


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "tiny"))


def test_a_run_becomes_one_page_beside_it(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(copied)]) == 0
    page = copied / "report.html"
    assert f"wrote {page}" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    lines = metrics(copied)
    assert f"{lines[0]['knn']:.1%} → {lines[-1]['knn']:.1%}" in text
    result = json.loads((copied / "results" / "knn.json").read_text())[0]["result"]
    assert f"{result['top1']:.1%}" in text
    assert f"--recipe {copied}/config.yaml --out {copied}-again" in text
    assert "views.png" not in text
    assert (
        text.count("<img") > 12 * 3 and "<h2>Alignment maps</h2>" in text
    )  # 12 images, each in 3 views
    for key in ("torchvision", "python", "device"):
        assert key in text


def test_the_command_that_a_page_gives_trains_the_same(copied: Path, tmp_path: Path) -> None:
    words = read_run(copied).command.split()
    assert words[:2] == ["lewel", "pretrain"]
    assert run(words[1:]) == 0
    repeated = [line["loss"] for line in metrics(tmp_path / "tiny-again") if "loss" in line]
    assert repeated == pytest.approx([line["loss"] for line in metrics(copied) if "loss" in line])


def test_results_are_those_of_the_table(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["results", str(copied)]) == 0
    table = capsys.readouterr().out
    (result,) = read_run(copied).results
    for cell in result.cells.values():
        assert cell in table
    assert sum(result.per_class.values()) > 0 and "1: " in result.sweep


def test_confusions_name_the_right_classes(tmp_path: Path) -> None:
    scores = torch.eye(4)[[1, 3, 0]]  # the class b has no image
    found = accuracy(scores, torch.tensor([0, 2, 0]), ["a", "b", "c", "d"])
    kept = {"backbone": "resnet18", "data": "x", **found}
    Results(tmp_path).keep("knn", {"weights": "abc", "data": "x"}, kept)
    (result,) = read_run(tmp_path).results
    assert set(result.mistakes) == {"a predicted as b (1)", "c predicted as d (1)"}


def test_several_runs_are_written_here(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copied.parent)
    shutil.copytree(copied, copied.parent / "other")
    assert run(["report", "tiny", "other"]) == 0
    assert "wrote report.html" in capsys.readouterr().out
    assert "2 runs side by side" in Path("report.html").read_text(encoding="utf-8")
    assert run(["report", "tiny", "other", "--out", "both.html"]) == 0
    assert Path("both.html").is_file()


def test_corrupt_images_predictions_and_maps_are_shown(copied: Path) -> None:
    corrupt = [{"index": i, "image": f"{i}-{NASTY}", "reason": "cut off"} for i in range(250)]
    (copied / "corrupt_images.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in corrupt)
    )
    (copied / "predictions").mkdir()
    (copied / "predictions" / "dog.png").write_bytes(picture("dog").content)
    (copied / "predictions" / "cut.png").write_bytes(picture("cut").content[:50])
    page = report([copied], None, lambda _: random_gallery()).read_text(encoding="utf-8")
    assert "249-&lt;img" not in page and "199-&lt;img" in page and "50 more in" in page
    assert "dog.png" in page and "This picture cannot be read." in page
    assert "<h2>Alignment maps</h2>" in page and NASTY not in page


def test_damaged_files_are_reported_on_the_page(copied: Path) -> None:
    config = (copied / "config.yaml").read_text().replace("seed:", "sead:")
    (copied / "config.yaml").write_text(config)
    (copied / "card.json").write_text("{")
    (copied / "results" / "knn.json").write_text("[")
    (copied / "views.png").write_bytes(b"none")
    (copied / "metrics.jsonl").write_bytes(b"{]\n" + (copied / "metrics.jsonl").read_bytes())
    data = read_run(copied)
    for words in ("'sead'", "card.json", "knn.json is damaged", "1 damaged lines of metrics.jsonl"):
        assert any(words in problem for problem in data.problems), words
    page = report([copied], None).read_text(encoding="utf-8")
    assert "views.png cannot be read" in page and "card.json cannot be read" in page


def test_an_incomplete_last_line_is_ignored(copied: Path) -> None:
    whole = read_run(copied).metrics
    with (copied / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 99, "epo')
    data = read_run(copied)
    assert data.metrics == whole and data.problems == ()


def test_the_progress_of_a_stopped_run(copied: Path) -> None:
    text = (copied / "config.yaml").read_text().replace("epochs: 1\n", "epochs: 7\n")
    (copied / "config.yaml").write_text(text)
    assert read_run(copied).progress == "epoch 1.00 of 7, last step written just now"
    hours = time.time() - 3 * 3600
    os.utime(copied / "metrics.jsonl", (hours, hours))
    assert read_run(copied).progress == "epoch 1.00 of 7, last step written 3 hours ago"


def test_a_card_with_unexpected_values(copied: Path) -> None:
    (copied / "card.json").write_text('{"images": "many", "environment": [], "torch": 3}')
    assert read_run(copied).environment == {"torch": "3"}


def test_a_file_name_that_is_not_utf_8(copied: Path) -> None:
    line = json.dumps({"index": 0, "image": "caf\udce9.jpg", "reason": "cut off"})
    (copied / "corrupt_images.jsonl").write_text(line + "\n")
    assert "caf?.jpg" in report([copied], None).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Which runs?"),
        (["nowhere"], "nowhere does not exist"),
        (["."], "holds no run"),
        (["tiny", "--out", "."], "is a folder"),
        (["tiny", "--out", "no/where.html"], "does not exist"),
    ],
)
def test_mistakes_get_one_message(
    words: list[str],
    message: str,
    copied: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(copied.parent)
    assert run(["report", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.strip().splitlines()) == 1
