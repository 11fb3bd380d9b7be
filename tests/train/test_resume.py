"""Resuming: what is checked on which rank, and what stays in memory."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from lewel.cli.main import run
from lewel.train import checkpoint, resume
from lewel.train.checkpoint import Checkpoints, State, find_damage
from lewel.train.resume import load_on_all_ranks
from tests.data.pack.photos import make_photos
from tests.running import tiny_run

CPU = torch.device("cpu")


@pytest.mark.parametrize(("rank", "checks"), [(0, 1), (1, 0)])
def test_only_rank_0_checks_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, checks: int
) -> None:
    store = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (3, 6):
        store.save(step, {"step": step, "weights": torch.arange(step)})
    checked: list[object] = []

    def spy(path: Path) -> str | None:
        checked.append(path)
        return find_damage(path)

    monkeypatch.setattr(checkpoint, "find_damage", spy)
    monkeypatch.setattr(resume, "rank", lambda: rank)
    monkeypatch.setattr(resume, "from_rank_0", lambda step: torch.tensor(6))
    state = load_on_all_ranks(store, CPU, print)
    assert state is not None and state["step"] == 6
    assert len(checked) == checks


def test_the_loaded_state_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []
    load = Checkpoints.load

    def spy(self: Checkpoints, *arguments: Any) -> State | None:
        state = load(self, *arguments)
        loaded.extend(weakref.ref(value) for value in (state or {"method": {}})["method"].values())
        return state

    def train(training: object) -> None:
        alive.extend(one() is not None for one in loaded)

    out = tmp_path / "run"
    linear = ["linear", str(out), "--data", str(make_photos(tmp_path / "photos")), "--epochs", "1"]
    linear += ["--workers", "0", "--accelerator", "cpu"]
    assert tiny_run(out, "--epochs", "1") == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lewel.tasks.evaluator.Evaluator.remove_checkpoints", lambda self: None)
        assert run(linear) == 0
    (out / "results" / "linear.json").unlink()
    monkeypatch.setattr(Checkpoints, "load", spy)
    for task, command in (("pretrain", None), ("training", linear)):
        monkeypatch.setattr(f"lewel.tasks.{task}.train", train)
        assert (tiny_run(out, "--epochs", "2") if command is None else run(command)) == 0
        assert len(loaded) > 10 and alive and not any(alive)
        loaded.clear()
        alive.clear()
