"""Data loading workers: their number, their signals, and how a dead one is recognised."""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from types import TracebackType

from lewel.errors import STOPPING

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent ends
PATIENCE = 5.0  # seconds in which a parent that closed its connections ends


def leave_signals_to_the_parent(worker: int) -> None:
    """Ignore signals in a worker (`worker_init_fn`), because the parent handles them.

    Signals may reach the whole process group. The parent finishes its step and needs its workers;
    they exit with it.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    end_with_the_parent()


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
    """Print an error, unless it is a connection that the end of the parent has closed."""
    until = time.monotonic() + PATIENCE
    while isinstance(error, ConnectionError | EOFError) and time.monotonic() < until:
        if _parent_has_ended():
            os._exit(1)
        time.sleep(0.01)  # a process closes its connections shortly before it ends
    sys.__excepthook__(kind, error, trace)


def reader_died(error: RuntimeError) -> bool:
    """Whether torch reports a killed worker, rather than an exception raised in one."""
    return "DataLoader worker" in str(error) and not str(error).startswith("Caught ")


def cores(devices: int = 1) -> int:
    """CPU cores for each of so many devices."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (mine or 1) // devices)
