"""`lewel report`: a real run folder becomes a page, whatever is missing or damaged in it."""

import json
import os
import re
import shutil
import time
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from lewel.cli import run
from lewel.comparing import results_table
from lewel.config import resolve, write_yaml
from lewel.eval.results import Results
from lewel.eval.scores import judge
from lewel.recipes import list_recipes, read_recipe
from lewel.reporting import read_run, write_report
from tests.report.making import NASTY, picture, random_gallery
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
    answer = json.loads((copied / "results" / "knn.json").read_text())[0]["answer"]
    assert f"{answer['top1']:.1%}" in text
    assert f"--recipe {copied}/config.yaml --out {copied}-again" in text
    assert "views.png" not in text
    assert text.count("<img") > 12 * 3 and "Where it looks" in text  # 12 images, each in 3 views
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


def test_mistakes_name_the_classes_that_were_mistaken(tmp_path: Path) -> None:
    scores = torch.eye(4)[[1, 3, 0]]  # the class b has no image
    answer = judge(scores, torch.tensor([0, 2, 0]), ["a", "b", "c", "d"])
    kept = {"backbone": "resnet18", "data": "x", **answer}
    Results(tmp_path).keep("knn", {"weights": "abc", "data": "x"}, kept)
    (result,) = read_run(tmp_path).results
    assert set(result.mistakes) == {"a taken for b (1)", "c taken for d (1)"}


def test_the_papers_number_stands_beside_a_run_of_its_recipe(tmp_path: Path) -> None:
    config = resolve(read_recipe("imagenet_lewel_b_100ep"), {"data": "imagenet"})
    write_yaml(config, tmp_path / "config.yaml")
    question = {"weights": "abc", "data": "imagenet"}
    answer = {"backbone": "resnet50", "data": "imagenet", "images": 50_000}
    classified = {"top1": 0.712, "top5": 0.9, "interval": [0.708, 0.716]}
    Results(tmp_path).keep("linear", question, {**answer, **classified})
    Results(tmp_path).keep("segment", question, {**answer, "miou": 0.5312, "seconds": 9.5})
    linear, dense = read_run(tmp_path).results
    stated = re.search(
        r"linear top-1 ([\d.]+) \((.*?)[;)]", list_recipes()["imagenet_lewel_b_100ep"]
    )
    assert stated is not None
    assert linear.cells["paper"] == f"top-1 {stated[1]}, top-5 90.5 ({stated[2]})"
    assert linear.cells["result"] == "top-1 71.2%" and linear.cells["also"] == "top-5 90.0%"
    assert dense.cells["result"] == "mIoU 53.1%"
    page = write_report([tmp_path], None).read_text(encoding="utf-8")
    beside = f'<td class="main">top-1 71.2%</td><td>{linear.cells["paper"]}</td>'
    assert beside in page and "mIoU 53.1%" in page
    table = Console(file=StringIO(), width=300)
    table.print(results_table([tmp_path]))
    assert "mIoU 53.1%" in table.file.getvalue()  # type: ignore[attr-defined]


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


def test_bad_images_predictions_and_maps_are_shown(copied: Path) -> None:
    bad = [{"index": i, "image": f"{i}-{NASTY}", "reason": "cut off"} for i in range(250)]
    (copied / "bad_images.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bad))
    (copied / "predictions").mkdir()
    (copied / "predictions" / "dog.png").write_bytes(picture("dog").content)
    (copied / "predictions" / "cut.png").write_bytes(picture("cut").content[:50])
    page = write_report([copied], None, lambda _: random_gallery()).read_text(encoding="utf-8")
    assert "249-&lt;img" not in page and "199-&lt;img" in page and "50 more in" in page
    assert "dog.png" in page and "This picture cannot be read." in page
    assert "Where it looks" in page and NASTY not in page


def test_damage_is_said_and_stops_nothing(copied: Path) -> None:
    config = (copied / "config.yaml").read_text().replace("seed:", "sead:")
    (copied / "config.yaml").write_text(config)
    (copied / "card.json").write_text("{")
    (copied / "results" / "knn.json").write_text("[")
    (copied / "views.png").write_bytes(b"none")
    (copied / "metrics.jsonl").write_bytes(b"{]\n" + (copied / "metrics.jsonl").read_bytes())
    told = read_run(copied)
    for words in ("'sead'", "card.json", "knn.json is damaged", "1 damaged lines of metrics.jsonl"):
        assert any(words in problem for problem in told.problems), words
    page = write_report([copied], None).read_text(encoding="utf-8")
    assert "views.png cannot be read" in page and "card.json cannot be read" in page


def test_a_line_that_is_being_written_is_left_for_later(copied: Path) -> None:
    whole = read_run(copied).metrics
    with (copied / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 99, "epo')
    told = read_run(copied)
    assert told.metrics == whole and told.problems == ()


def test_a_run_that_stopped_says_how_far_it_came(copied: Path) -> None:
    text = (copied / "config.yaml").read_text().replace("epochs: 1\n", "epochs: 7\n")
    (copied / "config.yaml").write_text(text)
    assert read_run(copied).progress == "epoch 1.00 of 7, last step written just now"
    hours = time.time() - 3 * 3600
    os.utime(copied / "metrics.jsonl", (hours, hours))
    assert read_run(copied).progress == "epoch 1.00 of 7, last step written 3 hours ago"


def test_a_card_with_other_things_in_it_is_no_trouble(copied: Path) -> None:
    (copied / "card.json").write_text('{"images": "many", "environment": [], "torch": 3}')
    assert read_run(copied).environment == {"torch": "3"}


def test_a_name_of_bytes_that_are_no_text_is_written_all_the_same(copied: Path) -> None:
    line = json.dumps({"index": 0, "image": "caf\udce9.jpg", "reason": "cut off"})
    (copied / "bad_images.jsonl").write_text(line + "\n")
    assert "caf?.jpg" in write_report([copied], None).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Which runs?"),
        (["nowhere"], "nowhere does not exist"),
        (["."], "holds no run"),
        (["tiny", "--out", "."], "is a folder"),
        (["tiny", "--out", "no/where.html"], "does not exist"),
    ],
)
def test_mistakes_get_one_sentence(
    words: list[str],
    sentence: str,
    copied: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(copied.parent)
    assert run(["report", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.strip().splitlines()) == 1
