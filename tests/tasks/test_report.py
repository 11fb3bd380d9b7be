"""`lewel report`: the page of a real run folder, also with missing or damaged files."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from lewel.cli.main import run
from lewel.config.configure import configure
from lewel.config.methods import as_recipe
from lewel.config.settings import write_yaml
from lewel.errors import UserError
from lewel.evaluate.results import Results
from lewel.evaluate.scores import accuracy
from lewel.tasks.references import record
from lewel.tasks.report import report
from lewel.tasks.run_reader import read_run
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
    opening = text.index('<section id="neighbours">')
    assert opening == text.index("<section") and "After training" in text[opening:]


def test_a_page_shows_no_credentials_of_the_data(copied: Path) -> None:
    config, place = copied / "config.yaml", "sftp://me:it's#secret@host/photos?token=abc123"
    config.write_text(config.read_text().replace("data: scenes", f'data: "{place}"'))
    found = read_run(copied)
    assert found.settings["data"] == "sftp://host/photos" in found.config_text
    page = report([copied]).read_text(encoding="utf-8")
    assert "secret" not in page and "abc123" not in page


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


def test_the_reference_of_its_recipe_lies_behind_a_run(tmp_path: Path) -> None:
    config = configure("imagenet", "imagenet_lewel_b_100ep", {})
    write_yaml(as_recipe(config), tmp_path / "config.yaml")
    (tmp_path / "card.json").write_text('{"images": 1281167}')
    lines = [{"step": n, "epoch": n / 10, "loss": 0.8} for n in range(1, 11)]
    late = [{"step": n, "epoch": n / 10, "loss": 1.9} for n in range(11, 21)]
    for written, departures in ((lines, 0), (lines + late, 1)):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in written))
        data, page = read_run(tmp_path), report([tmp_path]).read_text(encoding="utf-8")
        assert len(data.departures) == departures
        assert "Grey: the authors&#39; run of batch 1,024 (imagenet_lewel_b_100ep)" in page
        assert page.count('class="reference"') == 1  # only the loss has been written so far
        assert ("The loss is 1.9 at epoch 1.5, where the authors" in page) == bool(departures)


@pytest.mark.parametrize("mistake", ["other data", "other settings", "not finished"])
def test_a_reference_is_recorded_from_finished_runs_of_the_recipe(
    tmp_path: Path, mistake: str
) -> None:
    runs = [tmp_path / "0", tmp_path / "1"]
    for seed, folder in enumerate(runs):
        write_scenes_run(folder, seed, last=20)
    found = record("scenes_byol", runs)
    assert found["source"] == "2 runs, seeds 0, 1" and found["images"] == 20_000
    assert found["loss"][0] == pytest.approx([0.075, 1.5, 1.0, 2.0])
    assert found["knn"] == [[0.0, 0.2, 0.2, 0.2], [3.0, 0.55, 0.5, 0.6]]
    if mistake == "other data":
        write_scenes_run(runs[1], 1, last=20, images=16_000)
    elif mistake == "other settings":
        write_scenes_run(runs[1], 1, last=20, batch_size=32)
    else:
        write_scenes_run(runs[1], 1, last=19)
    with pytest.raises(UserError, match=r"no finished run|different numbers"):
        record("scenes_byol", runs)


def write_scenes_run(
    folder: Path, seed: int, last: int, images: int = 20_000, **given: object
) -> None:
    """A run folder of scenes_byol without weights; its loss is its seed plus one."""
    folder.mkdir(exist_ok=True)
    config = configure("scenes", "scenes_byol", {"seed": seed, **given})
    write_yaml(as_recipe(config), folder / "config.yaml")
    (folder / "card.json").write_text(json.dumps({"images": images}))
    steps = [
        {"step": n, "epoch": 0.15 * n, "loss": seed + 1.0, "embedding_std": 0.5}
        for n in range(1, last + 1)
    ]
    lines = [{"step": 0, "epoch": 0.0, "knn": 0.2}, *steps]
    lines[-1] = {**lines[-1], "knn": 0.5 + seed / 10}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


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


def test_data_that_cannot_be_opened_is_reported_on_the_page(copied: Path) -> None:
    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(config.replace("data: scenes", "data: moved/photos"))
    page = report([copied]).read_text(encoding="utf-8")
    for what in ("maps", "nearest neighbours"):
        assert f"The {what} could not be shown: " in page and "moved/photos" in page
    assert "<h2>Nearest neighbours</h2>" not in page and "<h2>Curves</h2>" in page


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
