"""The queue of a reproduction as SLURM jobs: a script for each backbone, and one array of them."""

import shlex
from pathlib import Path

from lewel.errors import UserError
from lewel.files import PARTIAL, write_atomically
from lewel.tasks.reproduction_numbers import digest
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
# A part that fails leaves out only what needs it; a signal stops all, and the job is requeued.
set -uo pipefail
failed=0
{parts}
exit $failed
"""
PART = """if [ ! -e {done} ]; then
  mkdir -p {folder}; begun=$SECONDS
  {command}
  code=$?
  if [ $code -ge 128 ]; then exit $code; fi
  if [ $code -eq 0 ]; then
    echo "{{\\"seconds\\": $((SECONDS - begun)), \\"digest\\": \\"{digest}\\"}}" > {done}{partial}
    mv {done}{partial} {done}
  else
    failed=1{without_run}
  fi
fi"""
ALONE = ("maps", "step_times")  # commands of one process


def write_jobs(queue: list[Backbone], setup: Setup) -> tuple[Path, int]:
    """Write the scripts -> the array job and their number.

    Controls are in the script of the run that they need.
    """
    folder = setup.out / "slurm"
    folder.mkdir(parents=True, exist_ok=True)
    scripts: dict[Path, list[str]] = {}
    for one in sorted(queue, key=lambda one: one.row.kind != "pretrained"):
        needs_run = one.row.kind in ("random_init", "supervised")
        name = one.source.parent.name if needs_run else one.folder.name
        for part in filter(one.to_do, one.parts()):
            scripts.setdefault(folder / f"{name}.sh", []).append(part_of(one, part))
    if not scripts:
        raise UserError("Nothing is left to do: all numbers are there or known.")
    for path, parts in scripts.items():
        _write(path, SCRIPT.format(name=path.stem, parts="\n".join(parts)))
    script = folder / "array.sbatch"
    names = " ".join(shlex.quote(str(path)) for path in scripts)
    _write(script, ARRAY.format(last=len(scripts) - 1, scripts=names))
    return script, len(scripts)


def part_of(one: Backbone, part: str) -> str:
    """The lines of one command."""
    tasks = " --ntasks=1" if part in ALONE else ""
    return PART.format(
        done=shlex.quote(str(one.file(part, "done.json"))),
        partial=PARTIAL,
        folder=shlex.quote(str(one.folder)),
        command=f"srun{tasks} --kill-on-bad-exit=1 {shlex.join(['lewel', *one.command(part)])}",
        digest=digest(one, part),
        without_run="; exit 1" if part == "pretrain" else "",
    )


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda aside: aside.write_text(text, encoding="utf-8"))
