"""A run that is told to stop saves; one that is killed leaves no traceback behind."""

import signal
from pathlib import Path

from tests.hostile.case import Case, case
from tests.hostile.world import LEWEL

LONG = LEWEL.replace("--log-every 3", "--log-every 1")
LINE = f"pretrain {{plain}} --out new {LONG} --epochs 4000 --checkpoint-minutes 0.01"
READERS = LINE.replace("--workers 0", "--workers 2")


def saved(place: Path, said: str) -> str | None:
    """The last checkpoint is that of the step at which the run says that it stopped."""
    files = sorted((place / "new" / "checkpoints").glob("step-*.pt"))
    step = int(files[-1].stem.removeprefix("step-"))
    return None if f"after step {step}" in said else f"the last checkpoint is of step {step}"


def cases() -> list[Case]:
    after = "new/checkpoints/step-00000000[1-9].pt"
    found = [
        case(
            "signal",
            line,
            f"{number.name} in a run",
            signal=number,
            after=after,
            says="run the same command to resume",
            check=saved,
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
        for line in (LINE, READERS)
    ]
    return found + [
        case("signal", line, "kill -9 of a run", signal=signal.SIGKILL, after=after)
        for line in (LINE, READERS)
    ]
