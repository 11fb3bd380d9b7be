"""A method of another package by an entry point: all commands accept it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lewel.cli.main import run
from lewel.config.configure import configure
from lewel.errors import UserError
from lewel.methods import registry
from lewel.methods.registry import find_method, method_names
from lewel.train.loop import freeze
from tests.running import metrics, tiny_command

TOY = '''
"""SimSiam without a predictor, which would collapse: a toy."""

import torch
from lewel.methods.base import About, Method, Step, embedding_std
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec


class Toy(Method):
    about = About(name="toy", title="The Toy", summary="a toy", paper="none", counterpart="byol")

    def __init__(self, backbone, *, head: HeadSpec = HeadSpec(), push: float = 1.0) -> None:
        super().__init__()
        self.push = push
        self.student = Encoder(backbone, GlobalHead(backbone.channels, head))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, views):
        one, two = (self.student(view).pooled for view in views)
        loss = (one - two.detach()).square().mean() - self.push * one.std(0).mean()
        return Step(loss, {"embedding_std": embedding_std(one)})

    def after_step(self, progress, keys):
        self.seen += 1
        return {"seen": float(self.seen)}
'''
BROKEN = "raise RuntimeError('no such luck')"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is on Python's path, as pip leaves it."""
    site = tmp_path / "site"
    about = site / "toys-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "toys.py").write_text(TOY)
    (site / "broken_toys.py").write_text(BROKEN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[lewel.methods]\ntoy = toys:Toy\nbroken = broken_toys:Broken\nbyol = toys:Toy\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "toys", raising=False)
    for known in (method_names, find_method, registry._plugins):
        known.cache_clear()
    yield site
    for known in (method_names, find_method, registry._plugins):
        known.cache_clear()


def command(out: Path, *flags: str, push: str = "0.5") -> list[str]:
    return tiny_command(out, "--method", "toy", "--options.push", push, *flags)


def test_it_trains_resumes_evaluates_and_is_reported(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert run(command(whole, "--epochs", "2")) == 0
    assert "compare with byol" in capsys.readouterr().out
    assert run(command(out, "--epochs", "1")) == 0
    assert run(command(out, "--epochs", "2")) == 0
    assert "resumed at step 4" in capsys.readouterr().out
    assert [line["seen"] for line in metrics(out)[1:]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert run(command(out, "--epochs", "2", push="0.7")) == 2
    assert "options: {'push': 0.5} -> {'push': 0.7}" in capsys.readouterr().err
    flags = ["--data", "scenes", "--limit", "40", "--workers", "0", "--accelerator", "cpu"]
    assert run(["knn", str(out), *flags]) == 0
    assert run(["results", str(out)]) == 0
    assert "toy" in capsys.readouterr().out
    assert run(["report", str(out)]) == 0
    assert "The Toy" in (out / "report.html").read_text()


def test_its_settings_are_checked(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(command(out, "--teacher.momentum", "0.9")) == 2
    assert "--teacher.momentum has no effect with --method toy" in capsys.readouterr().err
    assert run(command(out, "--options.pull", "1")) == 2
    assert "--options.pull is no setting of toy: it has push" in capsys.readouterr().err
    assert run(command(out, push="hard")) == 2
    assert "--options.push is 'hard'" in capsys.readouterr().err
    assert not out.exists()


def test_a_package_that_cannot_be_imported_is_one_message(installed: Path) -> None:
    with pytest.raises(UserError, match=r"'broken' of broken_toys:Broken cannot be loaded"):
        find_method("broken")


def test_built_in_methods_are_not_replaced(installed: Path) -> None:
    assert find_method("byol").__module__ == "lewel.methods.byol"
    assert method_names()[-2:] == ("broken", "toy")


def test_it_is_listed_in_the_help(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lewel", "pretrain", "--help"],
        env={**os.environ, "PYTHONPATH": f"{installed}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert ", ".join(method_names()) in " ".join(done.stdout.replace("│", " ").split())
    assert {"moco_v2", "broken", "toy"} <= set(method_names())


def test_a_plugin_that_is_declared_badly_does_not_break_ours(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (installed / "toys.py").write_text(TOY.replace("head: HeadSpec", "head: 'Nowhere'"))
    assert run(tiny_command(tmp_path / "run", "--method", "byol", "--contrast.queue", "4")) == 2
    assert re.search(r"it is a setting of (\w+, )*lewel_m, moco_v2", capsys.readouterr().err)
    assert run(["pretrain", "scenes", "--method", "toy", "--out", str(tmp_path / "run")]) == 2
    assert "The constructor of toy cannot be read" in capsys.readouterr().err


def test_without_a_recipe_the_constructors_sizes_count(installed: Path) -> None:
    (installed / "toys.py").write_text(TOY.replace("= HeadSpec()", "= HeadSpec(dim=8)"))
    assert configure("scenes", None, {"method": "toy"}).head.dim == 8


def test_a_run_of_a_method_that_is_not_installed_still_has_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny_command(tmp_path / "run", "--method", "byol", "--epochs", "1")) == 0
    flags = ["--data", "scenes", "--limit", "40", "--workers", "0", "--accelerator", "cpu"]
    assert run(["knn", str(tmp_path / "run"), *flags]) == 0
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("method: byol", "method: gone"))
    assert run(["results", str(tmp_path / "run")]) == 0
    assert "knn" in capsys.readouterr().out


CLUSTERED = '''
"""Keeps the mean embedding of all images before each epoch, and where crops were cut."""

import torch
from lewel.methods.base import About, Method, Step, embedding_std
from lewel.nn.heads import Encoder, GlobalHead, HeadSpec
from lewel.optim.groups import Group

CALLS = []


class Clustered(Method):
    about = About("clustered", "Clustered", "a toy", "none", views=1, small_crops=True)

    def __init__(self, backbone, *, images: int, head: HeadSpec = HeadSpec()) -> None:
        super().__init__()
        self.student = Encoder(backbone, GlobalHead(backbone.channels, head))
        self.scale = torch.nn.Parameter(torch.ones(3, 1))
        self.register_buffer("centres", torch.zeros(images, head.dim))
        self.register_buffer("seen", torch.zeros(images, dtype=torch.long))

    def before_epoch(self, epoch):
        rows = epoch.embed(lambda images: self.student(images).pooled)
        assert rows.shape == self.centres.shape and not rows.requires_grad and self.training
        self.centres.copy_(rows + 0.01 * torch.rand(()))
        epoch.progress("clustering", 1, 1)
        CALLS.append(epoch.number)

    def forward(self, views):
        assert [tuple(crop.shape[2:]) for crop in views] == [(16, 16)] + [(8, 8)] * 3
        for box, flip in zip(views.boxes, views.flips, strict=True):
            assert box.shape == (len(views.indices), 4) and flip.dtype == torch.bool
            assert box.min() >= 0 and (box[:, :2] + box[:, 2:]).max() <= 1
        areas = [float((box[:, 2] * box[:, 3]).mean()) for box in views.boxes]
        assert max(areas[1:]) < 0.2 < areas[0]
        assert views.total == len(self.centres)
        out = self.student(views[0]).pooled
        loss = (out - self.centres[views.indices]).square().mean() * self.scale.sum()
        return Step(loss, {"embedding_std": embedding_std(out)}, (views.indices, out.detach()))

    def after_step(self, progress, keys):
        indices, rows = keys
        assert len(indices) == len(rows) == 8
        self.seen[indices] += 1
        return {"scale": self.scale.sum().item(), "seen": float(self.seen.sum())}

    def groups(self):
        return [Group([self.scale], lr_scale=0.1, anneal=False, frozen_steps=3, weight_decay=0.0)]
'''


@pytest.fixture
def clustered(installed: Path) -> Path:
    (installed / "clusters.py").write_text(CLUSTERED)
    (installed / "toys-1.0.dist-info" / "entry_points.txt").write_text(
        "[lewel.methods]\nclustered = clusters:Clustered\n"
    )
    for known in (method_names, find_method, registry._plugins):
        known.cache_clear()
    sys.modules.pop("clusters", None)
    return installed


def test_what_it_keeps_before_an_epoch_survives_a_stop_within_it(
    clustered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[list[tuple[float, float]]] = []

    def spy(optimizer: torch.optim.Optimizer, step: int) -> None:
        groups.append([(g["lr"], g["weight_decay"]) for g in optimizer.param_groups])
        freeze(optimizer, step)

    monkeypatch.setattr("lewel.train.loop.freeze", spy)
    flags = ["--method", "clustered", "--epochs", "3", "--accumulate", "2", "--optim.name", "sgd"]
    flags += ["--views.small-crops", "3", "--views.small-size", "8", "--checkpoint-minutes", "0"]
    flags += ["--keep-checkpoints", "20", "--optim.lr", "0.1"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert run(tiny_command(whole, *flags)) == 0
    import clusters

    assert clusters.CALLS == [0, 1, 2]
    assert run(tiny_command(cut, *flags)) == 0
    for path in sorted((cut / "checkpoints").glob("*.pt")):
        if int(path.stem.split("-")[1]) > 6:  # in the middle of the second epoch
            path.unlink()
    clusters.CALLS.clear()
    assert run(tiny_command(cut, *flags)) == 0
    torch.set_num_threads(threads)
    assert clusters.CALLS == [2]
    states = [
        torch.load(out / "checkpoints" / "step-000000012.pt", weights_only=True)["method"]
        for out in (whole, cut)
    ]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    lines = metrics(whole)[1:]
    assert [line["seen"] for line in lines] == [8.0 * step for step in range(1, 13)]
    scales = [line["scale"] for line in lines]
    assert scales[:3] == [3.0] * 3 and scales[3] != 3.0  # frozen for three steps
    weights, _, own = zip(*groups[:12], strict=True)
    assert own == ((0.1 * 0.1, 0.0),) * 12  # neither annealed nor decayed
    assert weights[0] == (0.1, 1e-6) and weights[11][0] < 0.01


def test_small_crops_are_refused_where_the_method_takes_none(
    clustered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny_command(tmp_path / "run", "--views.small-crops", "2")) == 2
    said = capsys.readouterr().err
    assert "--views.small-crops has no effect with --method lewel_b" in said
    assert "clustered" in said and "swav" in said
