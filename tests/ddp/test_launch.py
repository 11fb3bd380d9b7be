"""Several processes by --devices, torchrun or SLURM: stopped and resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lewel.cli.main import run
from lewel.config.pretrain import PretrainConfig
from lewel.errors import RunError, UserError
from lewel.tasks.pretrain import refuse_different_settings
from lewel.train.devices import open_fabric, placement
from lewel.train.fabric import Fabric
from lewel.train.launch import launch, requeue_after_signal
from tests.data.pack.photos import make_photos, pack
from tests.faults.test_resume import weights
from tests.running import as_torchrun, metrics, tiny_command, tiny_run

# Two ShuffleBN groups on one device equal two devices, so all these runs are the same.
SAME = ("--method", "lewel_m", "--optim.lr", "0.0001", "--contrast.norm-groups", "2")
SLOWLY = ("--limit", "80", "--epochs", "8", "--checkpoint-minutes", "60", "--log-every", "1")
SLOW_SAVE = """
import time, torch
save = torch.save
torch.save = lambda *a, **k: (time.sleep(3), save(*a, **k))[1]
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def start(out: Path, *flags: str, by: tuple[str, ...] = (), **env: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *by, "-m", "lewel", *tiny_command(out, *flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def wait_for_step(out: Path, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    file = out / "metrics.jsonl"
    while not file.exists() or file.read_text().count("\n") <= step:  # the first line is of step 0
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_alike(one: Path, other: Path) -> None:
    """The same run up to float32 rounding, which grows from step to step."""
    steps = [[line["step"] for line in metrics(out)] for out in (one, other)]
    assert steps == [list(range(81))] * 2
    ours, theirs = ([line["loss"] for line in metrics(out)[1:]] for out in (one, other))
    first = [abs(a - b) for a, b in zip(ours[:15], theirs[:15], strict=True)]
    # Channels of low variance amplify rounding; which ones, depends on the CPU.
    assert sum(apart < 1e-4 for apart in first) >= 12 and max(first) < 0.01
    assert ours == pytest.approx(theirs, abs=0.15)
    assert max(ours) - min(ours) > 0.5
    assert weights(one).keys() == weights(other).keys()


def test_one_run_resumes_on_one_device_on_two_and_by_torchrun(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert tiny_run(whole, *SAME, *SLOWLY) == 0

    process = start(out, *SAME, *SLOWLY)
    wait_for_step(out, 3, process)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said

    process = start(out, *SAME, *SLOWLY, "--devices", "2")
    stopped = metrics(out)[-1]["step"]
    wait_for_step(out, stopped + 3, process)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert f"resumed at step {stopped}" in said
    assert "on 2 x cpu" in said
    assert said.count("run the same command to resume") == 1
    assert "Traceback" not in said

    process = start(out, *SAME, *SLOWLY, by=TORCHRUN)
    again = metrics(out)[-1]["step"]
    assert stopped < again < 80
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert said.count(f"resumed at step {again}") == 1
    assert_alike(whole, out)


@pytest.mark.slow  # two processes
def test_two_devices_read_a_pack_as_one_does(tmp_path: Path) -> None:
    photos, shards = make_photos(tmp_path / "photos", train=64, val=3), tmp_path / "shards"
    assert pack(photos, shards, "--shard-images", "16") == 0
    flags = (*SAME, "--limit", "64", "--epochs", "2", "--log-every", "1")
    for devices in ("1", "2"):
        out = tmp_path / devices
        assert tiny_run(out, *flags, "--devices", devices, data=str(shards)) == 0
    one, two = ([line["loss"] for line in metrics(tmp_path / n)[1:]] for n in ("1", "2"))
    assert len(one) == 16 and one == pytest.approx(two, abs=1e-3)
    assert max(one) - min(one) > 0.05


def test_a_requeue_signal_saves_and_requeues_the_slurm_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, requeued, tools = tmp_path / "run", tmp_path / "requeued", tmp_path / "bin"
    tools.mkdir()
    scontrol = tools / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nsleep 2\necho "$@" > {requeued}\n')  # as a busy controller
    scontrol.chmod(0o755)
    job = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "lewel",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "127.0.0.1",
        "MASTER_PORT": str(21000 + os.getpid() % 20000),
    }
    slow = tmp_path / "slow"  # a save that takes three seconds, as on a large network
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW_SAVE)
    job["PYTHONPATH"] = f"{slow}:{os.environ.get('PYTHONPATH', '')}"
    tasks = [
        start(out, *SAME, *SLOWLY, **job, SLURM_PROCID=rank, SLURM_LOCALID=rank)
        for rank in ("0", "1")
    ]
    wait_for_step(out, 2, tasks[0])
    tasks[1].send_signal(signal.SIGUSR1)  # one task gets it, both stop
    while tasks[1].poll() is None:
        time.sleep(0.05)
    assert requeued.exists()  # no rank leaves before the checkpoint is saved and the job requeued
    said = [task.communicate(timeout=60)[0] for task in tasks]
    # srun --kill-on-bad-exit ends all tasks with the first that fails: only rank 0 may, at the end.
    assert [task.returncode for task in tasks] == [138, 0], said
    assert requeued.read_text() == "requeue 4711\n"
    assert "job 4711 is requeued" in said[0]
    step = metrics(out)[-1]["step"]
    assert (out / "checkpoints" / f"step-{step:09d}.pt").exists()
    assert tiny_run(out, *SAME, *SLOWLY) == 0
    assert f"resumed at step {step}" in capsys.readouterr().out


@pytest.mark.slow
def test_torchrun_passes_the_requeue_signal_on(tmp_path: Path) -> None:
    """With the flag that the documents name."""
    out, requeued, tools = tmp_path / "run", tmp_path / "requeued", tmp_path / "bin"
    tools.mkdir()
    scontrol = tools / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {requeued}\n')
    scontrol.chmod(0o755)
    job = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}
    flag = ("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
    torchrun = start(out, *SAME, *SLOWLY, by=(*TORCHRUN, *flag), **job)
    wait_for_step(out, 2, torchrun)
    torchrun.send_signal(signal.SIGUSR1)
    said, _ = torchrun.communicate(timeout=60)
    assert requeued.read_text() == "requeue 4711\n", said
    assert "job 4711 is requeued" in said
    step = metrics(out)[-1]["step"]
    assert 2 <= step < 80 and (out / "checkpoints" / f"step-{step:09d}.pt").exists()


def fail_on_the_second(fabric: Fabric) -> None:
    if fabric.global_rank == 1:
        raise RunError("The disk of this node is full.")
    dist.all_reduce(torch.zeros(1))  # would wait for ever


def die_on_the_second(fabric: Fabric) -> None:
    if fabric.global_rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))


def lose_a_file_on_the_second(fabric: Fabric) -> None:
    if fabric.global_rank == 1:
        open("/no/such/file")  # noqa: SIM115
    dist.all_reduce(torch.zeros(1))


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lose_a_file_on_the_second, "^rank 1: /no/such/file: No such file or directory.$"),
        (fail_on_the_second, "^rank 1: The disk of this node is full.$"),
        (die_on_the_second, "Rank 1 was killed .*SIGKILL.*: perhaps memory ran out"),
    ],
)
def test_if_one_rank_fails_all_stop_with_its_message(work: object, message: str) -> None:
    fabric = open_fabric(placement(2, 1), "cpu", "32", False)
    began = time.monotonic()
    with pytest.raises(RunError, match=message):
        launch(fabric, 10.0, work)  # type: ignore[arg-type]
    assert time.monotonic() - began < 60


def choose_otherwise_on_the_second(fabric: Fabric) -> None:
    own = {"accumulate": 1 + fabric.global_rank, "data": str(fabric.global_rank), "workers": None}
    refuse_different_settings(PretrainConfig(**own))  # type: ignore[arg-type]


def test_ranks_that_chose_different_settings_are_refused() -> None:
    fabric = open_fabric(placement(2, 1), "cpu", "32", False)
    with pytest.raises(
        UserError, match=r"different settings \(--accumulate: 1 and 2\): give these"
    ):
        launch(fabric, 10.0, choose_otherwise_on_the_second)


def test_a_run_compares_the_settings_of_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def with_another(mine: list[PretrainConfig]) -> list[PretrainConfig]:
        return [*mine, mine[0].model_copy(update={"width": 16})]

    monkeypatch.setattr("lewel.tasks.pretrain.gather_objects", with_another)
    assert run(tiny_command(tmp_path / "run", "--epochs", "1")) == 2
    assert "different settings (--width: 8 and 16)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def break_on_the_second(fabric: Fabric) -> None:
    if fabric.global_rank == 1:
        raise TypeError("a mistake in the code")
    dist.all_reduce(torch.zeros(1))


def test_a_mistake_in_the_code_of_one_rank_keeps_its_traceback() -> None:
    fabric = open_fabric(placement(2, 1), "cpu", "32", False)
    with pytest.raises(RuntimeError, match="break_on_the_second") as raised:
        launch(fabric, 10.0, break_on_the_second)
    assert "TypeError: a mistake in the code" in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--devices", "3"], "batch size 8 cannot be shared by 3 devices"),
        (["--devices", "2", "--accumulate", "4"], "in parts of 2 or more"),
        (["--devices", "2", "--sync-batch-norm"], "works on GPUs only"),
        (["--devices", "0"], "devices"),
        (["--nodes", "2"], "by srun or torchrun"),
        (
            ["--devices", "2", "--method", "moco_v2", "--contrast.norm-groups", "3"],
            "cannot be normalised in 3 groups",
        ),
    ],
)
def test_wrong_devices_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert run(tiny_command(tmp_path / "run", *flags)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_devices_that_torchrun_did_not_start_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    as_torchrun(monkeypatch, 4, 8)
    assert placement(None, None)[:2] == (4, 2)
    assert placement(4, 2).starter == "torchrun"
    with pytest.raises(UserError, match="4 processes on each of 2 nodes"):
        placement(8, 1)


def test_a_batch_script_is_not_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert placement(2, 1) == (2, 1, "lewel")


def test_a_stop_before_training_is_not_a_failure(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--devices", "2", "--limit", "20000")
    time.sleep(5)  # before the first step
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    # At some point of the start the signal itself ends the process: a shell reports 130 for both.
    assert process.returncode in (130, -signal.SIGINT), said
    assert "Traceback" not in said
    assert "memory" not in said


@pytest.mark.slow
def test_one_stop_that_reaches_every_process_twice_still_saves(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, *SAME, *SLOWLY, "--devices", "2")
    wait_for_step(out, 2, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    step = metrics(out)[-1]["step"]
    assert step > 0
    assert (out / "checkpoints" / f"step-{step:09d}.pt").exists()


def test_only_the_requeue_signal_of_a_slurm_job_requeues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert requeue_after_signal(signal.SIGUSR1) is None
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert requeue_after_signal(signal.SIGTERM) is None
    monkeypatch.setenv("PATH", "")
    assert "by hand" in (requeue_after_signal(signal.SIGUSR1) or "")


def test_two_processes_of_srun_pack_the_same_bytes(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", train=60, val=9)
    flags = ("--size", "24", "--shard-images", "8", "--workers", "0")
    assert pack(photos, tmp_path / "one", *flags) == 0
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "5",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NODEID": "0",
    }
    words = [sys.executable, "-m", "lewel", "pack", str(photos), str(tmp_path / "two"), *flags]

    def start(number: str) -> "subprocess.Popen[str]":
        own = {"SLURM_PROCID": number, "SLURM_LOCALID": number, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            words,
            env={**os.environ, **step, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    processes = [start("0"), start("1")]
    said = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "packed 69 images" in said[0] and "packed" not in said[1]
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*-*")}
        for name in ("one", "two")
    )
    assert one.keys() == two.keys() and one == two
