"""`lewel doctor --deep`: its comparisons fail where they should, and every device is compared."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lewel.cli.main import run
from lewel.config.resolve import read_config
from lewel.methods.registry import method_names
from lewel.tasks import doctor_deep, doctor_runs, doctor_steps
from lewel.tasks.doctor_deep import BOUNDS, EXACT, ROUNDED, compare, examine, lacks, place_of
from lewel.tasks.doctor_facts import Device, Facts
from lewel.tasks.doctor_runs import Failed, Place, Runs, Steps, Taken, finish, killed_after
from lewel.tasks.doctor_steps import one_step
from tests.tasks.test_doctor import CPU, GPU, HEALTHY, line

LOSSES, UPDATE = [2.0, 1.5], torch.tensor([0.0, 3.0, 4.0], dtype=torch.float64)
BASE = Taken(LOSSES, UPDATE, torch.zeros(2))
TWO_GPUS = replace(HEALTHY, devices=(CPU, GPU, GPU._replace(name="cuda:1", bf16=False)))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (BASE._replace(losses=[2.0, 1.7]), "losses 0.1"),
        (BASE._replace(losses=[2.0, float("nan")]), "losses nan"),
        (BASE._replace(losses=[2.0]), "1 steps instead of 2"),
        (BASE._replace(update=1.2 * UPDATE), "updates 0.2 apart"),
        (BASE._replace(update=torch.full((3,), float("inf")).double()), "updates inf"),
        (BASE._replace(views=torch.ones(2)), "pixels of views differ by 1"),
    ],
)
def test_what_is_too_far_apart_fails(other: Taken, reason: str) -> None:
    with pytest.raises(Failed, match=reason):
        compare(BASE, other, ROUNDED)
    with pytest.raises(Failed, match="did not change"):
        compare(BASE._replace(update=0 * UPDATE), BASE, ROUNDED)


def test_what_is_close_enough_agrees() -> None:
    assert compare(BASE, BASE, EXACT) == "bit for bit"
    near = BASE._replace(losses=[2.0, 1.501], update=1.01 * UPDATE)
    assert compare(BASE, near, ROUNDED) == "losses 0.0007, updates 0.01 apart"
    with pytest.raises(Failed):
        compare(BASE, near, EXACT)


def test_a_step_agrees_with_float64_and_the_comparison_is_sensitive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken(arithmetic: str) -> Taken:
        found = one_step("lewel_m", arithmetic, "cpu")
        return Taken([found["loss"]], found["update"], found["views"])

    exact, own = taken("float64"), taken("32")
    assert "apart" in compare(exact, own, BOUNDS["32"])
    monkeypatch.setitem(doctor_steps.SMALL, "optim", {**doctor_steps.SMALL["optim"], "lr": 0.051})
    with pytest.raises(Failed, match=r"updates 0\.02 apart"):
        compare(exact, taken("32"), BOUNDS["32"])


def test_a_method_that_cannot_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(method: str, *given: str) -> dict[str, Any]:
        if method == "byol":
            raise RuntimeError("no kernel image")
        return {"loss": 1.0, "update": UPDATE, "views": torch.zeros(2)}

    monkeypatch.setattr(doctor_steps, "one_step", broken)
    doctor_steps.main(tmp_path, "cpu", ["32"])
    steps = Steps(tmp_path, lambda text: None)
    assert steps.read(tmp_path, "lewel_b", "32").losses == [1.0]
    with pytest.raises(Failed, match="byol: RuntimeError: no kernel image"):
        steps.read(tmp_path, "byol", "32")


def test_a_process_sees_one_gpu_and_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "TORCHELASTIC_RUN_ID", "MASTER_PORT"):
        monkeypatch.setenv(name, "7")
    second = TWO_GPUS.devices[2]
    assert place_of(second, TWO_GPUS) == Place("cuda:1", "cuda", "1")
    place = place_of(second, replace(TWO_GPUS, visible="3, GPU-8f1c"))
    assert place.environment()["CUDA_VISIBLE_DEVICES"] == "GPU-8f1c"
    assert "OMP_NUM_THREADS" not in place.environment() or "OMP_NUM_THREADS" in os.environ
    here = place_of(CPU, TWO_GPUS).environment()
    assert here["OMP_NUM_THREADS"] == "1"
    assert not {"RANK", "WORLD_SIZE", "SLURM_PROCID", "MASTER_PORT"} & here.keys()


def python(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.kill(os.getpid(), 4)", "killed by SIGILL"),
        ("print('first'); raise SystemExit('the reason.')", "the reason"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "hung for 1 s"),
    ],
)
def test_a_process_that_fails_gives_its_reason(code: str, reason: str) -> None:
    process = python(code)
    with pytest.raises(Failed, match=reason):
        finish(process, 1 if "hung" in reason else 60)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_what_failed_once_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(words: list[str], place: Place, **more: str) -> "subprocess.Popen[str]":
        started.append(words)
        code = "print('a new run')" if "new" in str(words) else "raise SystemExit('broken')"
        return python(code)

    monkeypatch.setattr(doctor_runs, "start", start)
    cpu, runs = Place("cpu", "cpu"), Runs(tmp_path / "runs", lambda text: None)
    steps = Steps(tmp_path / "steps", lambda text: None)
    for _ in range(2):
        with pytest.raises(Failed, match="broken"):
            runs.whole("lewel_m", cpu)
        with pytest.raises(Failed, match="broken"):
            steps.taken(cpu, "32")
    assert len(started) == 2
    assert read_config(tmp_path / "runs" / "lewel_m.yaml").contrast.norm_groups == 2
    with pytest.raises(Failed, match="began again"):
        runs.resume(tmp_path / "new", "lewel_m", cpu)


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_is_killed_once_it_has_saved(tmp_path: Path, ends: bool) -> None:
    code = "" if ends else "import time; time.sleep(60)"
    process = python(code)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step in range(1 if ends else 4):
        (folder / f"step-{step:09d}.pt").touch()
    assert killed_after(process, tmp_path, 2) is not ends


def test_arithmetics_that_a_device_lacks_are_skipped_with_a_reason() -> None:
    assert [lacks(GPU, name) for name in ("tf32", "bf16-mixed", "16-mixed")] == [""] * 3
    assert "Ampere" in lacks(CPU, "tf32") and "no bf16" in lacks(CPU, "bf16-mixed")
    assert "needs a GPU" in lacks(CPU, "16-mixed")
    assert "needs a GPU" in lacks(Device("mps", "", 1, 1), "16-mixed")
    assert lacks(GPU._replace(error="busy"), "tf32") == "the device cannot be used"


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Steps and runs that all give the same, and a list of what was asked for."""
    asked: list[tuple[Any, ...]] = []

    def spy(kind: str) -> Callable[..., Path]:
        def made(self: Runs, *given: Any) -> Path:
            asked.append((kind, *given))
            return Path(kind)

        return made

    def taken(self: Steps, place: Place, arithmetic: str) -> dict[str, Taken]:
        asked.append((arithmetic, place))
        return dict.fromkeys(method_names(), BASE)

    monkeypatch.setattr(Steps, "taken", taken)
    for kind in ("whole", "killed", "moved"):
        monkeypatch.setattr(Runs, kind, spy(kind))
    monkeypatch.setattr(doctor_deep, "read_run", lambda path: BASE)
    return asked


def names(facts: Facts, status: str) -> list[str]:
    return [one.name for one in examine(facts, lambda text: None) if one.status == status]


def test_two_gpus_are_compared_with_the_cpu_and_each_other(
    without_processes: list[tuple[Any, ...]],
) -> None:
    assert names(TWO_GPUS, "failed") == []
    asked = list(without_processes)
    cpu, first, second = (place_of(one, TWO_GPUS) for one in TWO_GPUS.devices)
    for arithmetic in ("32", "tf32", "bf16-mixed", "16-mixed"):
        assert (arithmetic, first) in asked
    assert ("tf32", second) in asked and ("bf16-mixed", second) not in asked
    both = Place("cuda-pair", "cuda", "0,1")
    assert ("whole", "lewel_m", first, 1, False) in asked
    assert ("whole", "lewel_m", both, 2, False) in asked
    assert ("whole", "lewel_b", both, 2, True) in asked
    assert ("killed", "lewel_b", first) in asked and ("killed", "lewel_b", cpu) in asked
    assert ("moved", "lewel_b", Path("whole"), first) in asked
    assert ("moved", "lewel_b", Path("whole"), cpu) in asked
    skipped = [f"{name} on cpu" for name in ("bf16-mixed", "16-mixed", "TF32")]
    assert names(TWO_GPUS, "skipped") == [*skipped, "bf16-mixed on cuda:1"]


@pytest.mark.usefixtures("without_processes")
def test_without_a_gpu_its_checks_are_skipped_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = examine(HEALTHY, lambda text: None)
    assert all(one.text for one in lines)
    assert line(lines, "two GPUs").text == line(lines, "move to a GPU").text == "there is no GPU"
    assert line(lines, "resume on cpu").text.endswith("(bit for bit)")
    busy = replace(HEALTHY, devices=(CPU, GPU._replace(error="busy")))
    assert line(examine(busy, lambda text: None), "methods on cuda:0").status == "skipped"

    def crash(*given: Any) -> None:
        raise Failed("it was killed by SIGILL")

    monkeypatch.setattr(Runs, "killed", crash)
    found = line(examine(HEALTHY, lambda text: None), "resume on cpu")
    assert found.status == "failed" and "it was killed by SIGILL: attach" in found.text


@pytest.mark.slow  # minutes: eleven processes that import torch
def test_this_machine_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--deep"]) == 0
    said = capsys.readouterr().out
    assert "FAILED" not in said
    assert "bit for bit" in said
