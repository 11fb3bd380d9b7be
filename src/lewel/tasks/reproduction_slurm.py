"""The queue of a reproduction as SLURM jobs: a script for each backbone, and one array of them."""

import shlex
from pathlib import Path

from lewel.files import write_atomically
from lewel.tasks.reproduction_plan import Backbone, Setup

ARRAY = """#!/bin/bash
#SBATCH --job-name=lewel-reproduce
#SBATCH --array=0-{last}
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=48:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
# Pre-training and every evaluation run on all GPUs of a node; a stopped job resumes by itself.
export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-1}} # srun does not take it over by itself
scripts=({scripts})
exec bash "${{scripts[$SLURM_ARRAY_TASK_ID]}}"
"""
SCRIPT = """#!/bin/bash
# {name}
set -euo pipefail
{commands}
"""


def write_jobs(queue: list[Backbone], setup: Setup) -> Path:
    """Write the scripts -> the array job; controls come after the runs that they need."""
    folder = setup.out / "slurm"
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for one in queue:
        path = folder / f"{one.folder.name}.sh"
        lines = []
        for part in one.parts():
            done = shlex.quote(str(one.file(part, "done.json")))
            command = shlex.join(["lewel", *one.command(part)])
            lines += [
                f"if [ ! -e {done} ]; then",
                f"  mkdir -p {shlex.quote(str(one.folder))}; begun=$SECONDS",
                f"  srun --kill-on-bad-exit=1 {command}",
                f'  echo "{{\\"seconds\\": $((SECONDS - begun))}}" > {done}',
                "fi",
            ]
        _write(path, SCRIPT.format(name=one.folder.name, commands="\n".join(lines)))
        names.append(shlex.quote(str(path)))
    script = folder / "array.sbatch"
    _write(script, ARRAY.format(last=len(names) - 1, scripts=" ".join(names)))
    return script


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda aside: aside.write_text(text, encoding="utf-8"))
