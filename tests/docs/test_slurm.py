"""The scripts for SLURM: one of them with a stub of srun that starts two tasks on this machine."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ddp.test_launch import SAME, wait_for_step
from tests.ddp.test_lost_ranks import LONG, RESUME, finish, saved_step
from tests.docs.pages import ROOT
from tests.running import metrics, tiny_command

SCRIPTS = {"one_gpu": (1, 1), "eight_gpus": (1, 8), "four_nodes": (4, 8)}
# Two nodes of one task each. Like srun, it passes the environment on, ends the other task when one
# fails (--kill-on-bad-exit=1), and ends with the worst code.
SRUN = """#!/bin/bash
echo "srun $SRUN_CPUS_PER_TASK $1" >> "$CALLS"
shift
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2
export SLURM_STEP_NODELIST=127.0.0.1 SLURM_LOCALID=0
for task in 0 1; do
  SLURM_PROCID=$task SLURM_NODEID=$task "$@" & tasks[$task]=$!
done
echo "${tasks[@]}" > "$TASKS"
worst=0
for _ in 0 1; do
  wait -n || { worst=$?; kill "${tasks[@]}" 2> /dev/null; }
done
exit $worst
"""


def settings(script: str) -> dict[str, str]:
    """The lines #SBATCH --key=value."""
    text = (ROOT / "docs" / "slurm" / f"{script}.sbatch").read_text(encoding="utf-8")
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.MULTILINE))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_asks_for_what_its_name_promises(script: str) -> None:
    nodes, gpus = SCRIPTS[script]
    wanted = settings(script)
    assert (wanted["nodes"], wanted["ntasks-per-node"]) == (str(nodes), str(gpus))
    assert wanted["gpus-per-node"] == wanted["ntasks-per-node"]
    assert "requeue" in wanted and wanted["signal"].startswith("USR1@")
    page = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
    assert f'--8<-- "docs/slurm/{script}.sbatch"' in page


def submit(folder: Path, out: Path, *flags: str) -> "subprocess.Popen[str]":
    """The script for four nodes with a tiny run; calls of srun and its tasks are in files."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    lewel = f'#!/bin/sh\nexec "{sys.executable}" -m lewel "$@"\n'
    for name, text in {"srun": SRUN, "lewel": lewel}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(stat.S_IRWXU)
    job = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "TASKS": str(folder / "tasks"),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NAME": "lewel",
        "SLURM_NTASKS": "32",  # of the allocation: the step has two
        "SLURM_NNODES": "4",
        "SLURM_NODELIST": "gpu[1-4]",
        "SLURM_CPUS_PER_TASK": "12",
    }
    _, data, _, run, *others = tiny_command(out, *flags)
    return subprocess.Popen(
        ["bash", str(ROOT / "docs" / "slurm" / "four_nodes.sbatch"), data, run, *others],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **job},
        start_new_session=True,
    )


def test_the_script_for_four_nodes_trains_on_two_tasks(tmp_path: Path) -> None:
    out = tmp_path / "a run"
    job = submit(tmp_path, out, "--epochs", "2", "--workers", "1")
    (said,) = finish([job])
    assert job.returncode == 0, said
    assert (tmp_path / "calls").read_text() == "srun 12 --kill-on-bad-exit=1\n"
    assert "on 2 x cpu" in said
    assert said.count("the weights are in ") == 1
    assert [line["step"] for line in metrics(out)] == list(range(9))
    assert (out / "checkpoints" / "step-000000008.pt").exists()


def test_a_killed_task_of_srun_is_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = submit(tmp_path, out, *SAME, *LONG)
    wait_for_step(out, 11, job)
    os.kill(int((tmp_path / "tasks").read_text().split()[1]), signal.SIGKILL)
    (said,) = finish([job])
    assert job.returncode != 0
    resume = RESUME.format(saved_step(out))
    sentence = f"Rank 1 has ended: it was killed, or its node was lost. {resume}"
    assert said.count(sentence) == 1, said
    assert said.count("run the same command") == 1 and "Traceback" not in said
