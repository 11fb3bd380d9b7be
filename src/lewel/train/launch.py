"""Processes of a run: launching, forwarding of signals and errors, SLURM requeue."""

import json
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from lewel.errors import Interrupted, RunError, UserError, signals_to_heed, system_message
from lewel.ops.ranks import leave, ranks
from lewel.progress import rank_from_outside
from lewel.train.devices import quieten
from lewel.train.fabric import Fabric

ENDINGS = {"UserError": UserError, "RunError": RunError}


def launch(fabric: Fabric, work: Callable[..., None], *arguments: Any) -> None:
    """Run `work(fabric, *arguments)` in new processes, one per device.

    If one rank fails, all ranks stop; its UserError or RunError is raised here.
    """
    with (
        tempfile.TemporaryDirectory() as place,
        _restore_master_port(),
        _forward_signals() as forwarded,
    ):
        try:
            start: Any = _in_a_process
            stopped = fabric.launch(start, work, arguments, place)
        except (ProcessRaisedException, ProcessExitedException) as error:
            for file in sorted(Path(place).glob("*.json")):  # by time: the first is the cause
                written = json.loads(file.read_text(encoding="utf-8"))
                raise ENDINGS[written["kind"]](written["message"]) from None
            if forwarded:  # before the processes handled signals
                raise Interrupted(forwarded[0]) from None
            if isinstance(error, ProcessExitedException):
                raise RunError(
                    f"Rank {error.error_index} was killed ({error}): perhaps memory ran out. "
                    "Run the same command to resume."
                ) from None
            raise
    if stopped is not None:
        number, step = stopped
        raise Interrupted(forwarded[0] if forwarded else number, step)


def _in_a_process(
    fabric: Fabric, work: Callable[..., None], arguments: tuple[Any, ...], place: str
) -> tuple[int, int | None] | None:
    """The main function of each process: run `work`; write its error to a file in `place`."""
    os.setpgrp()  # Ctrl-C reaches only the parent, which forwards it once
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until training handles signals, exit quietly
    quieten()
    stopped = None
    try:
        work(fabric, *arguments)
    except Interrupted as error:  # all ranks stop at the same step and exit normally
        stopped = error.number, error.step
    except (UserError, RunError, OSError) as error:
        name = f"{time.time_ns():020d}-{fabric.global_rank}.json"
        text = system_message(error) if isinstance(error, OSError) else str(error)
        message = text if fabric.global_rank == 0 else f"rank {fabric.global_rank}: {text}"
        kind = "UserError" if isinstance(error, UserError) else "RunError"
        written = json.dumps({"kind": kind, "message": message})
        (Path(place) / name).write_text(written, encoding="utf-8")
        raise
    leave()
    return stopped


@contextmanager
def _restore_master_port() -> Iterator[None]:
    """Restore MASTER_PORT, which Lightning leaves in the environment.

    Otherwise a later run of this process or its children would use the same port.
    """
    before = os.environ.get("MASTER_PORT")
    try:
        yield
    finally:
        os.environ.pop("MASTER_PORT", None)
        if before is not None:
            os.environ["MASTER_PORT"] = before


@contextmanager
def _forward_signals() -> Iterator[list[int]]:
    """Forward signals to the child processes, which save; this process waits for them."""
    forwarded: list[int] = []

    def forward(number: int, frame: object) -> None:
        forwarded.append(number)
        children = mp.active_children()
        if not children:  # none has started yet: start none
            raise Interrupted(number)
        for child in children:
            if child.pid is not None:  # SIGINT during Python's start-up prints a traceback
                os.kill(child.pid, signal.SIGTERM if number == signal.SIGINT else number)

    before = {}
    with suppress(ValueError):  # not the main thread: the caller handles signals
        before = {number: signal.signal(number, forward) for number in signals_to_heed()}
    logger = logging.getLogger("torch.multiprocessing.spawn")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of ending the other ranks
    try:
        yield forwarded
    finally:
        logger.setLevel(level)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def explain_lost_ranks() -> Iterator[None]:
    """Under torchrun or srun: name the cause where another rank has ended."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if ranks() == 1 or not any(word in text for word in ("peer", "NCCL", "gloo", "TCPStore")):
            raise
        reason = text.splitlines()[0]
        raise RunError(f"Another rank has ended, see its error message ({reason}).") from None


def requeue_after_signal(number: int) -> str | None:
    """After SLURM's signal (--signal=USR1@120) requeue the job -> a message, None otherwise."""
    job = os.environ.get("SLURM_JOB_ID")
    if number != signal.SIGUSR1 or job is None or rank_from_outside() != 0:
        return None
    command = shutil.which("scontrol")
    if command is None:
        return f"scontrol is not found: requeue job {job} by hand to resume"
    done = subprocess.run([command, "requeue", job], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"scontrol could not requeue job {job}: {done.stderr.strip()}"
    return f"job {job} is requeued"
