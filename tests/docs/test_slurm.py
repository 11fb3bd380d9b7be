"""The scripts for SLURM: one of them with a stub of srun that starts two tasks on this machine."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.running import metrics, tiny_command

SCRIPTS = {"one_gpu": (1, 1), "eight_gpus": (1, 8), "four_nodes": (4, 8)}
# Two nodes of one task each. Like srun, it passes the environment on, and ends with the worst code.
SRUN = """#!/bin/bash
echo "srun $SRUN_CPUS_PER_TASK $1" >> "$CALLS"
shift
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2
export SLURM_STEP_NODELIST=127.0.0.1 SLURM_LOCALID=0
for task in 0 1; do
  SLURM_PROCID=$task SLURM_NODEID=$task "$@" & tasks[$task]=$!
done
worst=0
for task in "${tasks[@]}"; do
  wait "$task" || worst=$?
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


def test_the_script_for_four_nodes_trains_on_two_tasks(tmp_path: Path) -> None:
    tools, out = tmp_path / "bin", tmp_path / "a run"
    tools.mkdir()
    lewel = f'#!/bin/sh\nexec "{sys.executable}" -m lewel "$@"\n'
    for name, text in {"srun": SRUN, "lewel": lewel}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(stat.S_IRWXU)
    job = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NAME": "lewel",
        "SLURM_NTASKS": "32",  # of the allocation: the step has two
        "SLURM_NNODES": "4",
        "SLURM_NODELIST": "gpu[1-4]",
        "SLURM_CPUS_PER_TASK": "12",
    }
    _, data, _, folder, *flags = tiny_command(out, "--epochs", "2", "--workers", "1")
    done = subprocess.run(
        ["bash", str(ROOT / "docs" / "slurm" / "four_nodes.sbatch"), data, folder, *flags],
        capture_output=True,
        text=True,
        env={**os.environ, **job},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "calls").read_text() == "srun 12 --kill-on-bad-exit=1\n"
    assert "on 2 x cpu" in done.stdout
    assert done.stdout.count("the weights are in ") == 1
    assert [line["step"] for line in metrics(out)] == list(range(9))
    assert (out / "checkpoints" / "step-000000008.pt").exists()
