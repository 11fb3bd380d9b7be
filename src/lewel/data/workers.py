"""Data loading workers: their number, their signals, and how a dead one is recognised."""

import ctypes
import math
import mmap
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
from types import TracebackType
from typing import Any

from lewel.errors import STOPPING, RunError, too_many_files

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent ends
PATIENCE = 5.0  # seconds in which a parent that closed its connections ends
UNLIMITED = 1 << 20  # CPUs
# Shared with the workers: 1 where one of them has ended for lack of open files.
_lacking = mmap.mmap(-1, 1)


def leave_signals_to_the_parent(worker: int) -> None:
    """Ignore signals in a worker (`worker_init_fn`), because the parent handles them.

    Signals may reach the whole process group. The parent finishes its step and needs its workers;
    they exit with it.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    end_with_the_parent()
    # By default it drops a batch that cannot be sent, and the parent waits for it for ever.
    Queue._on_queue_feeder_error = staticmethod(_end_at_a_lost_batch)  # type: ignore[attr-defined]


def end_with_the_parent() -> None:
    """End a worker at once, without a traceback, when its parent was killed."""
    sys.excepthook = _quiet_without_parent
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if _parent_has_ended():  # before the signal was set
            os._exit(1)


def _parent_has_ended() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() != parent.pid


def _quiet_without_parent(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error, unless it is a connection that the end of the parent has closed.

    Without files there are no connections: the worker ends.
    """
    if too_many_files(error):
        _lacking[0] = 1
        os._exit(1)
    until = time.monotonic() + PATIENCE
    while isinstance(error, ConnectionError | EOFError) and time.monotonic() < until:
        if _parent_has_ended():
            os._exit(1)
        time.sleep(0.01)  # a process closes its connections shortly before it ends
    sys.__excepthook__(kind, error, trace)


def _end_at_a_lost_batch(error: Exception, batch: Any) -> None:
    sys.excepthook(type(error), error, error.__traceback__)
    os._exit(1)


@contextmanager
def workers_explained() -> Iterator[None]:
    """Raise RunError where data workers died, or have too few files."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if too_many_files(error) or _lacking[0]:
            _lacking[0] = 0
            _drop_workers(error)
            raise RunError(
                "The data workers need more open files than the system allows: raise the limit by "
                "`ulimit -n 4096`, or use fewer --workers, and run the same command to resume."
            ) from None
        if isinstance(error, RuntimeError) and reader_died(error):
            raise RunError(
                f"A data worker died ({str(error).splitlines()[0]}): perhaps memory ran "
                "out. Run the same command with fewer --workers to resume."
            ) from error
        raise


def _drop_workers(error: BaseException) -> None:
    """Kill workers, which may wait for ever to send a batch, and free a half-made loader."""
    for worker in multiprocessing.active_children():
        worker.kill()
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    traceback.clear_frames(error.__traceback__)
    sys.unraisablehook = hook


def reader_died(error: RuntimeError) -> bool:
    """Whether torch reports a killed worker, rather than an exception raised in one."""
    return "DataLoader worker" in str(error) and not str(error).startswith("Caught ")


def cores(devices: int = 1) -> int:
    """CPU cores for each of so many devices, which share those of this process."""
    return max(1, usable_cores() // devices)


def usable_cores() -> int:
    """The CPU cores that this process may use: its affinity mask, or less in a container."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(mask or 1, cpu_quota()))


def cpu_quota(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """The CPUs whose time the cgroups of this process allow, versions 1 and 2; else very many."""
    quotas = [UNLIMITED]
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = cgroups / "cpu" if controllers else cgroups
        folder = top / path.lstrip("/")
        for one in (folder, *folder.parents):
            if one.is_relative_to(top):
                quotas.append(_quota_of(one))
    return min(quotas)


def _quota_of(cgroup: Path) -> int:
    """The CPUs of one cgroup: `cpu.max` of version 2, two files of version 1."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            words = " ".join((cgroup / name).read_text() for name in names).split()
            quota, period = (float(word) for word in words)  # "max" is no number: no limit
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:
            return max(1, math.ceil(quota / period))
    return UNLIMITED
