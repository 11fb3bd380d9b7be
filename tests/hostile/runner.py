"""Runs cases, each in a fork of one interpreter that has imported torch and lewel."""

import gc
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import torch

from lewel.cli.main import GROUPS, run
from tests.hostile.case import WORLD, Case, bring
from tests.hostile.verdict import HUNG, Verdict, snapshot, verdict_of

MEMORY = 8 << 30  # bytes of address space for a case: sizes that are too large end quickly
PATIENCE = 90.0  # seconds for a case
NOBODY = 65534
PYTHON = "python:"  # the first word of a case that is a piece of Python, not a command


def import_everything() -> None:
    """Import every command once: a fork has them for nothing."""
    torch.set_num_threads(1)
    for commands in GROUPS.values():
        for name in commands:
            module = name + "_" * (name == "import")
            import_module(f"lewel.cli.{module}")
            if name not in ("recipes", "bench"):
                import_module(f"lewel.tasks.{module}")
    for module in ("timm", "faster_coco_eval", "matplotlib.pyplot", "rich.status", "lewel.api"):
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page


def run_cases(
    cases: Iterable[Case], folder: Path, jobs: int, deadline: float
) -> Iterator[tuple[Case, Verdict]]:
    """Each case and its verdict, as they end; those after the deadline are not begun."""
    running: dict[int, tuple[Case, Path]] = {}
    for number, one in enumerate(cases):
        if time.monotonic() > deadline:
            break
        place = folder / f"{number:04d}"
        running[_fork(lambda one=one, place=place: _supervise(one, place))] = one, place  # type: ignore[misc]
        if len(running) >= jobs:
            yield _next_verdict(running)
    while running:
        yield _next_verdict(running)


def _next_verdict(running: dict[int, tuple[Case, Path]]) -> tuple[Case, Verdict]:
    pid, status = os.waitpid(-1, 0)
    one, place = running.pop(pid)
    file = place.with_suffix(".json")
    if file.exists():
        verdict = Verdict(**json.loads(file.read_text()))
        file.unlink()
    else:
        verdict = Verdict("other", f"the case itself failed ({status})", "see above")
    shutil.rmtree(place, ignore_errors=True)
    return one, verdict


def _fork(work: Callable[[], int]) -> int:
    """Run a function in a fork, which ends with its result; the fork's id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _supervise(one: Case, place: Path) -> int:
    """Prepare a case, run its command in another fork, and compare it."""
    begun = time.monotonic()
    place.mkdir()
    for word in one.words:
        for fixture in (place.parent / WORLD).iterdir():
            if f"{{{fixture.name}}}" in word:
                bring(place, fixture.name)
    if one.prepare is not None:
        one.prepare(place)
    if one.nobody and os.getuid() == 0:
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    before = snapshot(place)
    streams = [place.with_suffix(end) for end in (".out", ".err")]
    pid = _fork(lambda: _command(one, place, streams))
    code = _wait(pid, one, place)
    out, err = (path.read_text(errors="replace") for path in streams)
    for path in streams:
        path.unlink()
    verdict = verdict_of(one, place, code, out, err, before, snapshot(place))
    found = {**asdict(verdict), "seconds": time.monotonic() - begun}
    place.with_suffix(".json").write_text(json.dumps(found))
    return 0


def _command(one: Case, place: Path, streams: list[Path]) -> int:
    """The command itself, in a session of its own with its output in files."""
    os.setsid()
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores these
    for number in (signal.SIGQUIT, signal.SIGHUP):  # nohup ignores the latter
        signal.signal(number, signal.SIG_DFL)
    os.chdir(place)
    if one.nobody and os.getuid() == 0:
        os.setuid(NOBODY)
    names = [path.name for path in (place.parent / WORLD).iterdir()]
    return _run(one, {**{name: name for name in names}, WORLD: str(place.parent / WORLD)})


def _run(one: Case, names: dict[str, str]) -> int:
    """The exit code, as `python -m lewel` has it."""
    words = list(one.words)
    for name, value in names.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    if words[0] != PYTHON:
        return run(words)
    from lewel.errors import UserError

    try:
        exec(words[1], {})
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _wait(pid: int, one: Case, place: Path) -> int:
    """The exit code of a process, -number after a signal, HUNG where it was ended for its time."""
    deadline, sent = time.monotonic() + PATIENCE, False
    code = HUNG
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        if one.signal and not sent and any(place.glob(one.after)):
            os.kill(pid, one.signal)
            sent = True
        time.sleep(0.005)
    if one.signal == signal.SIGKILL:
        time.sleep(2)  # readers that lost their parent may still print
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what it has started, and itself if it hangs
    if code == HUNG:
        os.waitpid(pid, 0)
    return code
