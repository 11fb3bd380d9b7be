"""Run folders, results, recipes and packs of version 0.1 still open, resume and evaluate.

tests/fixtures/version_0_1 was written by version 0.1: a run that was stopped after step 10 of 24,
the same run trained to its end and evaluated by six commands, and a pack.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import lewel
from lewel.cli.main import run
from lewel.config.configure import configure
from lewel.data.sources.open import open_data
from tests.running import metrics

FIXTURES = Path(__file__).parents[1] / "fixtures" / "version_0_1"
FLAGS = [
    *("--method", "lewel_m", "--backbone", "resnet10", "--stem", "small", "--width", "2"),
    *("--image-size", "32", "--batch-size", "8", "--head.hidden", "8", "--head.dim", "8"),
    *("--head.aligned-dim", "8", "--head.groups", "2", "--contrast.queue", "16"),
    *("--contrast.norm-groups", "2", "--optim.lr", "0.05", "--optim.lr-batch-size", "8"),
    *("--optim.warmup-epochs", "0", "--knn.every", "3", "--knn.bank", "50", "--knn.queries", "50"),
    *("--workers", "0", "--log-every", "3", "--accelerator", "cpu", "--limit", "32"),
    *("--epochs", "6"),
]
SHARED = ["--data", "scenes", "--accelerator", "cpu", "--workers", "0"]
DENSE = [*SHARED, "--limit", "8", "--iterations", "2"]
EVALUATIONS = {
    "knn": [*SHARED, "--limit", "60"],
    "linear": [*SHARED, "--fast", "--limit", "60"],
    "finetune": [
        *(*SHARED, "--limit", "60", "--labels", "50%", "--epochs", "1", "--batch-size", "8")
    ],
    "where": ["--data", "scenes", "--limit", "8"],
    "segment": [
        *(*DENSE, "--batch-size", "4", "--crop", "32", "--channels", "4"),
        *("--auxiliary-channels", "4"),
    ],
    "detect": [
        *(*DENSE, "--recipe", "detect_scenes_small", "--val-limit", "4", "--batch-size", "2")
    ],
}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(FIXTURES, tmp_path_factory.mktemp("old") / "fixtures"))


def test_a_stopped_run_resumes_as_version_0_1_would_have(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, threads = old / "interrupted", torch.get_num_threads()
    (folder / "bad_images.jsonl").write_text("")  # its name of the list of corrupt images
    torch.set_num_threads(1)
    assert run(["pretrain", "scenes", *FLAGS, "--out", str(folder)]) == 0
    torch.set_num_threads(threads)
    assert "resumed at step 10" in capsys.readouterr().out
    assert (folder / "corrupt_images.jsonl").exists()
    lines, expected = metrics(folder), metrics(FIXTURES / "finished")
    assert [line["step"] for line in lines] == list(range(25))
    for step in range(11, 15):  # rounding differs from CPU to CPU, and grows
        assert lines[step]["loss"] == pytest.approx(expected[step]["loss"], abs=1e-3)
        assert lines[step]["embedding_std"] == pytest.approx(expected[step]["spread"], abs=1e-3)
    assert run(["pretrain", "scenes", *FLAGS, "--out", str(folder)]) == 0
    assert "This run is finished" in capsys.readouterr().out


@pytest.mark.parametrize("command", EVALUATIONS)
def test_a_result_is_not_computed_again(
    old: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, str(old / "finished"), *EVALUATIONS[command]]) == 0
    output = capsys.readouterr().out
    assert "cached in" in output and "next:" in output


def test_results_report_and_maps(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = old / "finished"
    assert run(["results", str(folder)]) == 0
    table = capsys.readouterr().out
    for name in ("knn", "linear_fast", "finetune", "where", "segment", "detect"):
        assert name in table
    assert run(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert (
        "Embedding std" in page and "cannot be read" not in page and "another version" not in page
    )
    assert run(["maps", str(folder), "scenes", "--limit", "2"]) == 0


def test_a_new_evaluation_is_added_to_the_old_ones(old: Path) -> None:
    folder = old / "finished"
    before = len(json.loads((folder / "results" / "knn.json").read_text()))
    assert lewel.knn(folder, "scenes", limit=40, workers=0, accelerator="cpu").images == 2000
    entries = json.loads((folder / "results" / "knn.json").read_text())
    assert len(entries) == before + 1
    assert all(set(entry) - {"checksum"} == {"settings", "result"} for entry in entries)


def test_the_backbone_loads(old: Path) -> None:
    assert lewel.load_backbone(old / "finished")(torch.randn(2, 3, 32, 32)).shape == (2, 16)


def test_config_yaml_is_still_a_recipe(old: Path) -> None:
    recipe = str(old / "finished" / "config.yaml")
    assert configure(None, recipe, {}).contrast.queue == 16
    assert configure(None, recipe, {"method": "moco_v2"}).head.dim == 8


def test_a_pack_opens_and_is_intact(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = open_data(str(old / "pack"), image_size=16).unlabelled
    assert len(data) == 6 and data.classes == ("a", "b")
    assert data.read(0).shape == (3, 24, 24)
    assert run(["pack", "--check", str(old / "pack")]) == 0
    assert "is intact: 2 shards, 6 images" in capsys.readouterr().out


def test_results_from_python_are_the_table(old: Path) -> None:
    rows = lewel.results(old / "finished")
    assert {row["task"].split(" (")[0] for row in rows} >= {"knn", "where", "detect fpn"}
    assert "scenes_demo" in lewel.recipes() and "results" in dir(lewel)


def test_a_result_is_the_same_fresh_and_cached(old: Path) -> None:
    given = {"limit": 40, "workers": 0, "accelerator": "cpu", "neighbours": [5]}
    fresh = lewel.knn(old / "finished", "scenes", **given)
    assert fresh == lewel.knn(old / "finished", "scenes", **given)
