"""Ctrl-C, SIGTERM, SIGHUP, SIGQUIT and SLURM's SIGUSR1 end a run at a step's end, after a save."""

import os
import signal
import stat
import time
from types import FrameType

from lewel.errors import signals_to_heed

AGAIN = 2.0  # seconds after which another signal counts as a second one


class Interruption:
    """While entered, the first such signal is recorded; a second one ends the process at once.

    One stop of a process tree may send each process the signal twice within a moment.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, signal._HANDLER] = {}
        self._since = 0.0

    def __enter__(self) -> "Interruption":
        for number in signals_to_heed():
            try:
                self._before[number] = signal.signal(number, self._record)
            except ValueError:  # not the main thread: the caller handles signals
                break
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        leave_closed_terminals()
        if self.number is None:
            self.number, self._since = number, now
        elif now - self._since > AGAIN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def leave_closed_terminals() -> None:
    """After SIGHUP, send output to /dev/null where its terminal is gone: a write would fail."""
    for number in (1, 2):
        try:
            device = stat.S_ISCHR(os.fstat(number).st_mode)
        except OSError:  # closed by the caller
            continue
        if device and not os.isatty(number):  # a terminal that is gone is none any more
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
