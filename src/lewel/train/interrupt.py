"""Ctrl-C, SIGTERM, SIGHUP, SIGQUIT and SLURM's SIGUSR1 end a run at a step's end, after a save."""

import os
import signal
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
        self._terminals = [number for number in (1, 2) if os.isatty(number)]

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
        if number == signal.SIGHUP:
            self._leave_closed_terminals()
        if self.number is None:
            self.number, self._since = number, now
        elif now - self._since > AGAIN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _leave_closed_terminals(self) -> None:
        """Send output to /dev/null where its terminal is closed: a write would be an error."""
        for number in self._terminals:
            if not os.isatty(number):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
