"""`lewel compare`: a plan that stays, and one table of all methods."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lewel.cli.main import run
from lewel.methods.registry import method_names
from lewel.tasks import compare
from lewel.tasks.compare import chosen, measured_share, recipe_of
from lewel.tasks.reproduce import Worker
from lewel.tasks.reproduction_plan import Backbone
from tests.cli.making import images

TINY = {
    **{"batch_size": 8, "width": 8, "image_size": 16, "head.hidden": 16, "head.dim": 8},
    **{"channels_last": False, "log_every": 1, "stem": "small"},
}


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny networks, and no process for each part."""

    def work(self: Worker, queue: list[Backbone]) -> int:
        for one in queue:
            self.do(one)
        return self.failed

    monkeypatch.setattr(Worker, "work", work)
    monkeypatch.setattr(Worker, "call", lambda self, words, log: (run(words), "failed"))
    monkeypatch.setattr(compare, "SHARED", {**compare.SHARED, **TINY})
    few = {"epochs": 1, "batch_size": 8, "workers": 0}
    monkeypatch.setattr(compare, "FEW_LABELS", few)


@pytest.mark.usefixtures("in_process")
def test_methods_share_the_time_and_end_in_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    images(data / "train", {"a": 32, "b": 32})
    images(data / "val", {"a": 20, "b": 20})
    words = ["compare", str(data), "--budget", "1m", "--out", str(out)]

    def short(*given: object) -> compare.Share:
        found = measured_share(*given)  # type: ignore[arg-type]
        assert found.speed > 0 and found.memory > 0
        return compare.Share(**{**vars(found), "settings": {"epochs": 1}})

    monkeypatch.setattr(compare, "measured_share", short)
    assert run([*words, "--methods", "byol"]) == 0
    first = json.loads((out / "plan.json").read_text())["shares"]
    capsys.readouterr()
    assert run([*words, "--methods", "byol", "simclr"]) == 0  # adds one, keeps the other
    said = capsys.readouterr().out
    assert "byol: timing" not in said and "seed0, pretrain: done" in said
    assert json.loads((out / "plan.json").read_text())["shares"][0] == first[0]
    page = (out / "pages" / "compare.md").read_text()
    lines = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    assert [line[1].strip() for line in lines] == [
        *("", "BYOL", "SimCLR", "randomly initialised (control)"),
    ]
    assert [cell.strip() for cell in lines[0][2:-1]] == [
        *("k-NN", "linear probe", "10 % of the labels", "maps: consistency"),
        *("images/s", "memory of a step"),
    ]
    assert all(cell.strip() != "-" for line in lines[1:3] for cell in line[2:-1])
    assert "BYOL" in said and "pages/index.html" in said
    assert "--methods byol simclr --budget" in said  # the next command is for the same methods

    assert run([*words, "--methods", "byol", "simclr", "--list"]) == 0
    assert "5 of 5" in capsys.readouterr().out
    assert run([*words[:3], "2m", *words[4:]]) == 2
    assert "for 60 s a method" in capsys.readouterr().err
    (out / "plan.json").write_text("[]")
    assert run(words) == 2
    assert "is damaged" in capsys.readouterr().err


def test_every_method_has_its_recipes() -> None:
    assert chosen([]) == chosen(["all"]) == sorted(method_names())
    for name in method_names():
        assert recipe_of(name, "scenes") and recipe_of(name, "photos")


def test_wrong_methods_and_folders_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "scenes", "--methods", "nothing", "--out", str(tmp_path / "a")]) == 2
    assert "nothing" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.txt").write_text("mine")
    assert run(["compare", "scenes", "--methods", "byol", "--out", str(tmp_path / "mine")]) == 2
    assert "holds other files" in capsys.readouterr().err
    few, out = images(tmp_path / "few", {"a": 40}), tmp_path / "c"
    assert run(["compare", str(few), "--methods", "byol", "--out", str(out)]) == 2
    assert "has 40 images, fewer than a batch of tinyimagenet_byol" in capsys.readouterr().err
    assert not out.exists()
    assert run(["compare", "scenes", "--budget", "soon", "--out", str(tmp_path / "b")]) == 2
    for budget in ("0", "0m", "59s"):
        assert run(["compare", "scenes", "--budget", budget, "--out", str(tmp_path / "b")]) == 2
    (tmp_path / "empty").mkdir()
    assert run(["compare", str(tmp_path / "empty"), "--out", str(tmp_path / "b")]) == 2
    assert "holds no image" in capsys.readouterr().err
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


def test_a_method_that_is_too_short_is_remarked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = images(tmp_path / "data", {"a": 130})

    def one_epoch(name: str, recipe: str, *_: object) -> compare.Share:
        return compare.Share(name, recipe, {"epochs": 1}, 1.0, 1)

    monkeypatch.setattr(compare, "measured_share", one_epoch)
    words = ["compare", str(data), "--methods", "pcl", "swav", "--budget", "1m", "--list"]
    assert run([*words, "--out", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "pcl: PCL clusters after 1 epochs of MoCo, and this run has 1: it is MoCo alone" in said
    assert "swav: SwAV's prototypes are fixed in the first 50 steps, and this run has 2" in said


def test_a_plugin_without_recipes_is_not_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "method_names", lambda: (*method_names(), "lewel", "demo"))
    assert chosen(["all"]) == list(method_names())


@pytest.mark.slow
def test_stopped_and_resumed_with_two_jobs_it_is_exact(tmp_path: Path) -> None:
    data = images(tmp_path / "data", {"a": 130})
    methods = ("byol", "pcl")
    shares = [
        {"method": m, "recipe": recipe_of(m, str(data)), "settings": {"epochs": 3}, "speed": 1.0}
        for m in methods
    ]
    plan = {"data": str(data), "budget": 60.0, "shares": [{**one, "memory": 1} for one in shares]}

    def start(name: str) -> "subprocess.Popen[str]":
        out = tmp_path / name
        out.mkdir(exist_ok=True)
        (out / "plan.json").write_text(json.dumps(plan))
        words = ["compare", str(data), "--methods", *methods, "--budget", "1m", "--jobs", "2"]
        command = [sys.executable, "-m", "lewel", *words, "--out", str(out)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, text=True, **streams)  # type: ignore[call-overload,no-any-return]

    whole = start("whole")
    said, _ = whole.communicate(timeout=600)
    assert whole.returncode == 0, said
    cut = start("cut")
    begun = tmp_path / "cut" / "backbones"
    while len(list(begun.glob("*/run/checkpoints/*.pt"))) < 2 and cut.poll() is None:
        time.sleep(0.05)
    cut.send_signal(signal.SIGTERM)
    said, _ = cut.communicate(timeout=120)
    assert cut.returncode == 143, said
    assert len(list(begun.glob("*/pretrain.done.json"))) < 2  # it was stopped early
    again = start("cut")
    said, _ = again.communicate(timeout=600)
    assert again.returncode == 0, said
    for folder in (tmp_path / "whole" / "backbones").iterdir():
        one, two = (
            load_file(tmp_path / name / "backbones" / folder.name / "run" / "backbone.safetensors")
            for name in ("whole", "cut")
        )
        assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    pages = [(tmp_path / name / "pages" / "compare.md").read_text() for name in ("whole", "cut")]
    assert pages[0] == pages[1]
