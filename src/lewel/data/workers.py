"""Data loading workers: their number, their signals, and how a dead one is recognised."""

import os
import signal


def leave_signals_to_the_parent(worker: int) -> None:
    """Ignore signals in a worker (`worker_init_fn`), because the parent handles them.

    Signals may reach the whole process group. The parent finishes its step and needs its workers;
    they exit with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def reader_died(error: RuntimeError) -> bool:
    """Whether torch reports a killed worker, rather than an exception raised in one."""
    return "DataLoader worker" in str(error) and not str(error).startswith("Caught ")


def cores(devices: int = 1) -> int:
    """CPU cores for each of so many devices."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (mine or 1) // devices)
