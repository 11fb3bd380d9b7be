"""A killed or hanging rank, by every way of starting: one sentence, and how to resume."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.ddp.test_launch import SAME, TORCHRUN, start, wait_for_step

LONG = ("--limit", "80", "--epochs", "400", "--checkpoint-minutes", "60", "--log-every", "1")
RESUME = "Training is saved up to step {}: run the same command to resume."
Process = subprocess.Popen[str]


def by_nodes(out: Path, *flags: str) -> list[Process]:
    """Two nodes with lewel's own processes: MASTER_ADDR, MASTER_PORT and NODE_RANK."""
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(23000 + os.getpid() % 20000)}
    nodes = ("--nodes", "2", "--devices", "1")
    return [start(out, *flags, *nodes, **here, NODE_RANK=node) for node in ("0", "1")]


def by_srun(out: Path, *flags: str) -> list[Process]:
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "3",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NODEID": "0",
    }
    return [start(out, *flags, **step, SLURM_PROCID=n, SLURM_LOCALID=n) for n in ("0", "1")]


def children(process: Process) -> list[int]:
    """The processes that a launcher has started, the oldest first."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in listed]


def ranks_of(process: Process) -> list[int]:
    """The ranks among them, without helpers of multiprocessing."""
    commands = {one: Path(f"/proc/{one}/cmdline").read_text() for one in children(process)}
    return [one for one, command in commands.items() if "resource_tracker" not in command]


def finish(processes: list[Process]) -> list[str]:
    try:
        return [process.communicate(timeout=180)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def saved_step(out: Path) -> int:
    return int(sorted((out / "checkpoints").glob("step-*.pt"))[-1].stem.removeprefix("step-"))


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_of_another_node(tmp_path: Path, killed: int) -> None:
    out, other = tmp_path / "run", 1 - killed
    nodes = by_nodes(out, *SAME, *LONG)
    wait_for_step(out, 11, nodes[0])
    (victim,) = ranks_of(nodes[killed])
    os.kill(victim, signal.SIGKILL)
    said = finish(nodes)
    resume = RESUME.format(saved_step(out))
    assert [node.returncode for node in nodes] == [1, 1], said
    lost = f"Rank {killed} has ended: it was killed, or its node was lost. {resume}\n"
    assert lost in said[other]
    assert f"Rank {killed} was killed (SIGKILL): perhaps memory ran out. {resume}\n" in said[killed]
    for text in said:
        assert "Traceback" not in text
        assert text.count("run the same command") == 1


def test_a_killed_rank_of_torchrun(tmp_path: Path) -> None:
    out = tmp_path / "run"
    torchrun = start(out, *SAME, *LONG, by=TORCHRUN)
    wait_for_step(out, 11, torchrun)
    ranks = {
        int(one.read_text().split("\0RANK=")[1].split("\0")[0]): int(one.parent.name)
        for one in (Path(f"/proc/{child}/environ") for child in children(torchrun))
        if "\0RANK=" in one.read_text()
    }
    os.kill(ranks[1], signal.SIGKILL)
    (said,) = finish([torchrun])
    resume = RESUME.format(saved_step(out))
    sentence = f"Rank 1 has ended: it was killed, or its node was lost. {resume}"
    ours, _, theirs = said.partition("ChildFailedError")
    assert f"{sentence}\n" in ours and ours.count("run the same command") == 1
    assert "closed by peer" not in said
    assert theirs.count("run the same command") == theirs.count(sentence)  # of rank 0, if it is in
    assert "To enable traceback see" not in theirs


@pytest.mark.slow  # two processes
def test_a_rank_of_srun_that_hangs_is_noticed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    tasks = by_srun(out, *SAME, *LONG, "--rank-timeout", "0.2")
    wait_for_step(out, 11, tasks[0])
    tasks[1].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    (said,) = finish(tasks[:1])
    assert time.monotonic() - began < 60
    resume = RESUME.format(saved_step(out))
    assert said.endswith(f"Rank 1 has not answered for 0.2 minutes (--rank-timeout). {resume}\n")
    assert tasks[0].returncode == 1
    assert "Traceback" not in said
    tasks[1].send_signal(signal.SIGCONT)  # it finds itself alone, and ends as well
    (other,) = finish(tasks[1:])
    assert tasks[1].returncode == 1
    assert "Traceback" not in other


@pytest.mark.slow
def test_a_rank_of_lewels_own_that_hangs_is_noticed_and_killed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    parent = start(out, *SAME, *LONG, "--devices", "2", "--rank-timeout", "0.2")
    wait_for_step(out, 11, parent)
    victim = ranks_of(parent)[1]
    os.kill(victim, signal.SIGSTOP)
    (said,) = finish([parent])
    resume = RESUME.format(saved_step(out))
    assert said.endswith(f"Rank 1 has not answered for 0.2 minutes (--rank-timeout). {resume}\n")
    assert parent.returncode == 1
    assert "Traceback" not in said
    assert not Path(f"/proc/{victim}").exists()


STUCK = """
import os, time
if os.environ.get("SLURM_PROCID") == "1":
    import lewel.train.loop as loop
    {patch}
"""
IN_A_STEP = "take = loop.take_step; loop.take_step = lambda run, *rest: (time.sleep(600 * (run.step == 12)), take(run, *rest))[1]"  # noqa: E501
IN_READING = "make = loop.make_loader; loop.make_loader = lambda *given: (time.sleep(600 * (n == 12)) or batch for n, batch in enumerate(make(*given)))"  # noqa: E501


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (IN_READING, "Rank 1 has waited for its batch of step 13 for "),
        (IN_A_STEP, "Rank 0 has not finished step 13 for "),
    ],
)
def test_a_rank_that_answers_but_is_stuck_is_noticed(tmp_path: Path, patch: str, why: str) -> None:
    out, customised = tmp_path / "run", tmp_path / "customised"
    customised.mkdir()
    (customised / "sitecustomize.py").write_text(STUCK.format(patch=patch))
    paths = f"{customised}:{os.environ.get('PYTHONPATH', '')}"
    before, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", ""), paths
    try:
        tasks = by_srun(out, *SAME, *LONG, "--rank-timeout", "0.2")
    finally:
        os.environ["PYTHONPATH"] = before
    began = time.monotonic()
    said = finish(tasks)
    assert time.monotonic() - began < 150
    assert [task.returncode for task in tasks] == [1, 1], said
    resume = RESUME.format(saved_step(out))
    both = "".join(said)
    assert both.count(why) == 1 and both.count(resume) == 1
    assert "(--rank-timeout)" in both and "Traceback" not in both


@pytest.mark.parametrize("minutes", ["0", "-1", "soon"])
def test_a_wrong_timeout_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], minutes: str
) -> None:
    from lewel.cli.main import run
    from lewel.config.pretrain import PretrainConfig
    from tests.running import tiny_command

    assert PretrainConfig().rank_timeout == 10  # minutes, as the documents state
    assert run(tiny_command(tmp_path / "run", "--rank-timeout", minutes)) == 2
    assert "rank" in capsys.readouterr().err
