"""Processes of a run: started together, stopped together, and put back into SLURM's queue."""

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

from lewel.errors import Interrupted, RunError, UserError, system_sentence
from lewel.ops.ranks import leave, ranks
from lewel.train.devices import quieten, rank_from_outside
from lewel.train.engine import Fabric
from lewel.train.interrupt import STOPPING

ENDINGS = {"UserError": UserError, "RunError": RunError}


def launch(fabric: Fabric, work: Callable[..., None], *arguments: Any) -> None:
    """Run `work(fabric, *arguments)` in new processes, one a device; all end with the first.

    What a process raises of our own errors is raised here, so that its sentence reaches the user.
    """
    with (
        tempfile.TemporaryDirectory() as place,
        _meeting_port_forgotten(),
        _passing_signals_on() as passed,
    ):
        try:
            start: Any = _in_a_process
            stopped = fabric.launch(start, work, arguments, place)
        except (ProcessRaisedException, ProcessExitedException) as error:
            for file in sorted(Path(place).glob("*.json")):  # by time: the first is the cause
                told = json.loads(file.read_text(encoding="utf-8"))
                raise ENDINGS[told["kind"]](told["sentence"]) from None
            if passed:  # before the processes were ready to note a signal
                raise Interrupted(passed[0]) from None
            if isinstance(error, ProcessExitedException):
                raise RunError(
                    f"Rank {error.error_index} was ended from outside ({error}): perhaps memory "
                    "ran out. Run the same command again to go on."
                ) from None
            raise
    if stopped is not None:
        number, step = stopped
        raise Interrupted(passed[0] if passed else number, step)


def _in_a_process(
    fabric: Fabric, work: Callable[..., None], arguments: tuple[Any, ...], place: str
) -> tuple[int, int | None] | None:
    """What each process does: work, and leave word of what went wrong before it ends."""
    os.setpgrp()  # Ctrl-C reaches the parent alone, which passes it on once
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until training notes signals, end quietly
    quieten()
    stopped = None
    try:
        work(fabric, *arguments)
    except Interrupted as error:  # all ranks stop at the same step, each with time to end well
        stopped = error.number, error.step
    except (UserError, RunError, OSError) as error:
        name = f"{time.time_ns():020d}-{fabric.global_rank}.json"
        said = system_sentence(error) if isinstance(error, OSError) else str(error)
        sentence = said if fabric.global_rank == 0 else f"rank {fabric.global_rank}: {said}"
        kind = "UserError" if isinstance(error, UserError) else "RunError"
        word = json.dumps({"kind": kind, "sentence": sentence})
        (Path(place) / name).write_text(word, encoding="utf-8")
        raise
    leave()
    return stopped


@contextmanager
def _meeting_port_forgotten() -> Iterator[None]:
    """Lightning leaves the port where processes met in the environment: the next ones find theirs.

    Another run that this process or its children start would else meet at the same place.
    """
    before = os.environ.get("MASTER_PORT")
    try:
        yield
    finally:
        os.environ.pop("MASTER_PORT", None)
        if before is not None:
            os.environ["MASTER_PORT"] = before


@contextmanager
def _passing_signals_on() -> Iterator[list[int]]:
    """While processes run, signals to this one are theirs: they save, and this one waits."""
    passed: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        passed.append(number)
        children = mp.active_children()
        if not children:  # none has started yet: none shall
            raise Interrupted(number)
        for child in children:
            if child.pid is not None:  # a Python that still starts answers SIGINT with a traceback
                os.kill(child.pid, signal.SIGTERM if number == signal.SIGINT else number)

    before = {}
    with suppress(ValueError):  # not the main thread: the caller handles signals
        before = {number: signal.signal(number, pass_on) for number in STOPPING}
    chatter = logging.getLogger("torch.multiprocessing.spawn")
    level = chatter.level
    chatter.setLevel(logging.ERROR)  # ending the other ranks is no news
    try:
        yield passed
    finally:
        chatter.setLevel(level)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def lost_peers_explained() -> Iterator[None]:
    """Where torchrun or srun has started us: a rank that ended takes the others with it."""
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if ranks() == 1 or not any(word in said for word in ("peer", "NCCL", "gloo", "TCPStore")):
            raise
        reason = said.splitlines()[0]
        raise RunError(f"Another rank has ended, see its sentence ({reason}).") from None


def requeue_if_asked(number: int) -> str | None:
    """After SLURM's requeue signal (--signal=USR1@120) put the job back -> what was done."""
    job = os.environ.get("SLURM_JOB_ID")
    if number != signal.SIGUSR1 or job is None or rank_from_outside() != 0:
        return None
    command = shutil.which("scontrol")
    if command is None:
        return f"scontrol is not here: requeue job {job} by hand to go on"
    done = subprocess.run([command, "requeue", job], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"scontrol could not requeue job {job}: {done.stderr.strip()}"
    return f"job {job} is back in the queue"
