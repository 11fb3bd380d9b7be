"""`lewel reproduce`: the paper's experiments as a queue that can be stopped anywhere.

Each backbone is a folder with a file for every part that is done.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lewel.errors import Interrupted, signals_to_heed
from lewel.files import write_atomically
from lewel.tasks.reproduction_numbers import digest
from lewel.tasks.reproduction_plan import Backbone
from lewel.train.interrupt import leave_closed_terminals

PR_SET_PDEATHSIG = 1  # of prctl


class Worker:
    """Works through a queue, some backbones at a time, until it is done or a signal stops it."""

    def __init__(self, jobs: int, report: Callable[[str], None], lock: int | None = None) -> None:
        self.jobs, self.report = jobs, report
        self.kept = () if lock is None else (lock,)  # descriptors that commands hold, too
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopped: int | None = None
        self.failed = 0

    def work(self, queue: list[Backbone]) -> int:
        """Do all that is not done -> how many parts failed; raises Interrupted after a signal."""
        before = {number: signal.signal(number, self.stop) for number in signals_to_heed()}
        try:
            for group in (True, False):  # controls need a pre-trained run's folder
                chosen = [one for one in queue if (one.row.kind == "pretrained") is group]
                with ThreadPoolExecutor(self.jobs) as pool:
                    list(pool.map(self.do_all, chosen))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.stopped is not None:
            raise Interrupted(self.stopped, when="with what was running saved")
        return self.failed

    def stop(self, number: int, frame: object) -> None:
        """Let running commands save and end; begin no other."""
        leave_closed_terminals()
        self.stopped = number
        for process in list(self.running):
            process.send_signal(signal.SIGTERM)

    def do_all(self, one: Backbone) -> None:
        """All parts of a backbone; what the queue itself cannot do leaves out this one alone."""
        try:
            self.do(one)
        except OSError as error:  # a full disk, a lost folder
            self.failed += 1
            self.report(f"{one.folder.name}: failed: {error.strerror or error}")

    def do(self, one: Backbone) -> None:
        """All parts of a backbone; a part that fails leaves out only what needs it."""
        for part in one.parts():
            if self.stopped is not None:
                return
            needs_run = part not in ("pretrain", "step_times")
            # An unfinished run has weights too: they must not be evaluated.
            trained = one.is_trained()
            if (trained or not needs_run) and one.to_do(part):
                self.do_part(one, part)

    def do_part(self, one: Backbone, part: str) -> None:
        """One command, and a file with its outcome."""
        one.folder.mkdir(parents=True, exist_ok=True)
        begun, before = time.monotonic(), one.seconds(part, "spent.json") or 0.0
        code, last = self.call(one.command(part), one.file(part, "log"))
        seconds = round(before + time.monotonic() - begun, 1)
        if code == 0:
            one.file(part, "failed.txt").unlink(missing_ok=True)
            self.keep(one.file(part, "done.json"), seconds, digest(one, part))
            self.report(f"{one.folder.name}, {part}: done in {seconds:.0f} s")
        elif self.stopped is not None:
            self.keep(one.file(part, "spent.json"), seconds, digest(one, part))
        else:
            self.failed += 1
            one.file(part, "failed.txt").write_text(last + "\n")
            self.report(f"{one.folder.name}, {part}: failed: {last}")

    def keep(self, file: Path, seconds: float, settings: str) -> None:
        text = json.dumps({"seconds": seconds, "digest": settings})
        write_atomically(file, lambda aside: aside.write_text(text))

    def call(self, words: list[str], log: Path) -> tuple[int, str]:
        """Run a command in a process of its own, on one thread -> exit code and last line."""
        with log.open("ab") as file:
            begun = file.tell()  # what follows is of this call
            process = subprocess.Popen(
                [sys.executable, "-m", "lewel", *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C reaches it through this process alone
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                pass_fds=self.kept,
                preexec_fn=_end_with_parent,
            )
            self.running.add(process)
            if self.stopped is not None:  # a signal came in between
                process.send_signal(signal.SIGTERM)
            code = process.wait()
            self.running.discard(process)
        lines = log.read_bytes()[begun:].decode("utf-8", "replace").strip().splitlines()
        if code < 0:
            return code, f"killed by {signal.Signals(-code).name}: perhaps memory ran out"
        return code, lines[-1] if lines else f"exit code {code}"


def _libc() -> ctypes.CDLL | None:
    with suppress(OSError, TypeError):
        return ctypes.CDLL(None)
    return None


LIBC = _libc()  # loaded here: little is safe between fork and exec


def _end_with_parent() -> None:
    """Let the kernel stop this command, which then saves, if the queue is killed (Linux)."""
    if LIBC is not None and sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Part(NamedTuple):
    """A part of a queue, and how far it is."""

    backbone: Backbone
    name: str
    state: str
    spent: float  # seconds, here
    left: float | None  # expected from others like it; None where nothing is known


def state_of(queue: list[Backbone]) -> list[Part]:
    """Every part with its state."""
    measured: dict[tuple[str, ...], list[float]] = {}
    for one in queue:
        for part in one.parts():
            if (seconds := one.spent(part)) is not None:
                for like in ((part, one.recipe), (part,)):
                    measured.setdefault(like, []).append(seconds)
    out = []
    for one in queue:
        for part in one.parts():
            done = one.seconds(part)
            if done is not None or one.known(part) is not None:
                out.append(Part(one, part, "known" if done is None else "done", done or 0.0, 0.0))
                continue
            spent = one.seconds(part, "spent.json") or 0.0
            found = measured.get((part, one.recipe)) or measured.get((part,))
            left = max(0.0, sum(found) / len(found) - spent) if found else None
            failed, begun = one.file(part, "failed.txt"), one.file(part, "log")
            state = "failed" if failed.exists() else "begun" if begun.exists() else "to do"
            out.append(Part(one, part, state, spent, left))
    return out
