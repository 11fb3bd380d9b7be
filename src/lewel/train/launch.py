"""Processes of a run: launching, forwarding of signals and errors, SLURM requeue."""

import json
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from lewel.errors import (
    Interrupted,
    LostRank,
    RunError,
    UserError,
    signals_to_heed,
    system_message,
)
from lewel.ops.ranks import leave
from lewel.progress import rank_from_outside
from lewel.train.devices import quieten
from lewel.train.fabric import Fabric
from lewel.train.interrupt import leave_closed_terminals
from lewel.train.lost_ranks import WatchedRanks, lost_connection, resumption

SAVED, LOST, RESULT = "saved", "lost", "result"  # files of the processes for their parent
ENDINGS = {"UserError": UserError, "RunError": RunError}


def launch(fabric: Fabric, minutes: float, work: Callable[..., Any], *arguments: Any) -> Any:
    """Run `work(fabric, *arguments)` in new processes, one per device -> what the first returns.

    If one rank fails, all ranks stop; its UserError or RunError is raised here. A rank that does
    not answer for so many minutes is lost.
    """
    with (
        tempfile.TemporaryDirectory() as place,
        _restore_master_port(),
        _forward_signals() as forwarded,
    ):
        try:
            start: Any = _in_a_process
            stopped = fabric.launch(start, work, arguments, place, minutes)
        except (ProcessRaisedException, ProcessExitedException) as error:
            strategy: Any = fabric.strategy
            first_rank = strategy.node_rank * strategy.num_processes
            raise _explained(error, Path(place), first_rank, forwarded) from None
        result = Path(place) / RESULT
        found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
    if stopped is not None:
        number, step = stopped
        raise Interrupted(forwarded[0] if forwarded else number, step)
    return found


def _explained(
    error: ProcessRaisedException | ProcessExitedException,
    place: Path,
    first_rank: int,
    forwarded: list[int],
) -> Exception:
    """Why the processes have ended: what one of them wrote to `place`, a signal, a lost rank."""
    for file in sorted(place.glob("*.json")):  # by time: the first is the cause
        written = json.loads(file.read_text(encoding="utf-8"))
        return ENDINGS.get(written["kind"], RuntimeError)(written["message"])
    if forwarded:  # before the processes handled signals
        return Interrupted(forwarded[0])
    saved, lost = place / SAVED, place / LOST
    if isinstance(error, ProcessExitedException) and error.signal_name:
        step = int(saved.read_text(encoding="utf-8")) if saved.exists() else None
        return LostRank(
            f"Rank {first_rank + error.error_index} was killed ({error.signal_name}): perhaps "
            f"memory ran out. {resumption(step)}"
        )
    return LostRank(lost.read_text(encoding="utf-8")) if lost.exists() else error


def _in_a_process(
    fabric: Fabric,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    place: str,
    minutes: float,
) -> tuple[int, int | None] | None:
    """The main function of each process: run `work`; write its result or error to `place`."""
    os.setpgrp()  # Ctrl-C reaches only the parent, which forwards it once
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until training handles signals, exit quietly
    quieten()
    folder = Path(place)

    def report(text: str) -> None:
        (folder / LOST).write_text(text, encoding="utf-8")

    watch = WatchedRanks(minutes, report, folder / SAVED)
    try:
        with watch, _errors_written(folder, fabric.global_rank):
            result = work(fabric, *arguments)
    except Interrupted as error:  # all ranks stop at the same step and exit normally
        leave()
        return error.number, error.step
    if result is not None and fabric.local_rank == 0:
        (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
    leave()
    return None


@contextmanager
def _errors_written(folder: Path, rank: int) -> Iterator[None]:
    """Write an error to a file for the parent, before other ranks end by it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Interrupted) or lost_connection(error):
            raise
        if isinstance(error, UserError | RunError | OSError):
            text = system_message(error) if isinstance(error, OSError) else str(error)
            kind = "UserError" if isinstance(error, UserError) else "RunError"
        else:  # a mistake in the code
            kind, text = type(error).__name__, traceback.format_exc()
        message = text if rank == 0 else f"rank {rank}: {text}"
        written = json.dumps({"kind": kind, "message": message})
        (folder / f"{time.time_ns():020d}-{rank}.json").write_text(written, encoding="utf-8")
        raise


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
        leave_closed_terminals()
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
