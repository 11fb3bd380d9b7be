"""The first signal is recorded, a second one ends the process."""

import os
import signal
import time
from contextlib import suppress

import pytest

from lewel.errors import STOPPING
from lewel.train import interrupt
from lewel.train.interrupt import Interruption


def child(ready: int) -> None:
    """Train for ever, deaf to what is recorded."""
    with Interruption():
        os.write(ready, b".")
        while True:
            time.sleep(0.05)


def ended(pid: int) -> int | None:
    """The exit code of a process, None where it does not end."""
    for _ in range(200):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    return None


@pytest.mark.parametrize("number", STOPPING)
def test_a_second_signal_ends_the_run_at_once(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "AGAIN", 0.5)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(writing)
    try:
        assert os.read(reading, 1) == b"."
        for _ in range(2):  # one stop may come twice within a moment
            os.kill(pid, number)
            time.sleep(0.1)
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        time.sleep(0.6)
        os.kill(pid, number)
        assert ended(pid) == -number
    finally:
        with suppress(ChildProcessError, ProcessLookupError):  # it has ended
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        signal.signal(signal.SIGHUP, before)
        os.close(reading)
        os.close(writing)
