"""Repeats requests while storage does not answer, and tells outages from missing files."""

import mmap
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from lewel.errors import StorageError

Answer = TypeVar("Answer")

FIRST_WAIT: Final = 0.5  # seconds before a failed request is repeated; doubled each time
LONGEST_WAIT: Final = 15.0
SILENT: Final = 10.0  # seconds of an outage before it is reported
SLICE: Final = 0.2  # seconds between two looks at the shared state while waiting
LATER: Final = (408, 425, 429)  # HTTP's statuses of 400 to 499 that ask to try again
# What no repetition mends: a missing file, missing rights, a wrong URL, a missing package.
LASTING: Final = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    TypeError,
    ImportError,
)


class Refused(OSError):
    """Storage has answered, and will not answer otherwise."""


class _Shared:
    """State of an outage that forked processes share: its begin, whether it is reported, an end."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 24)

    def __getitem__(self, slot: int) -> float:
        return float(struct.unpack_from("d", self._memory, 8 * slot)[0])

    def __setitem__(self, slot: int, value: float) -> None:
        struct.pack_into("d", self._memory, 8 * slot, value)


_SINCE, _SAID, _STOPPED = range(3)
_shared = _Shared()  # made at import, so that all data workers inherit it
_chance = random.SystemRandom()  # not the seeded one, which all ranks may share


def stop_waiting(stopped: bool = True) -> None:
    """End all waits of this process and its data workers, or allow them again."""
    _shared[_STOPPED] = float(stopped)


def is_stopped() -> bool:
    """Whether waits are to end."""
    return bool(_shared[_STOPPED])


def answered(request: Callable[[], Answer], place: str, minutes: float) -> Answer:
    """The answer to a request, repeated with growing pauses while storage does not answer.

    Raises OSError where storage answers that it cannot, and StorageError after so many minutes.
    """
    began, wait = 0.0, FIRST_WAIT
    while True:
        try:
            answer = request()
        except OSError as error:
            if isinstance(error, (*LASTING, Refused)):
                raise
            began = began or time.monotonic()
            reason = str(error) or type(error).__name__
            _report_outage(place, reason)
            _pause(_chance.uniform(0.5, 1.0) * wait)
            wait = min(2 * wait, LONGEST_WAIT)
            if time.monotonic() - began > 60 * minutes or _shared[_STOPPED]:
                raise StorageError(
                    f"{place} has not answered for {minutes:g} minutes ({reason}): mend the "
                    "storage, or raise --storage-timeout."
                ) from error
        else:
            if began:
                _report_end()
            return answer


def as_os_error(error: Exception) -> OSError:
    """The error of a back end of fsspec: an outage (OSError), or what lasts (Refused)."""
    text = str(error) or type(error).__name__
    status = getattr(error, "status", getattr(error, "code", None))
    if isinstance(status, int) and 400 <= status < 500 and status not in LATER:
        return Refused(f"HTTP status {status}")
    if isinstance(status, int):
        return OSError(f"HTTP status {status}")
    if isinstance(error, LASTING) or "Credentials" in type(error).__name__:
        return error if isinstance(error, OSError) else Refused(text)
    return error if isinstance(error, OSError) else OSError(text)


def _pause(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not _shared[_STOPPED]:
        time.sleep(min(left, SLICE))


def _report_outage(place: str, reason: str) -> None:
    """Print once that storage does not answer, in one process of a node."""
    now = time.monotonic()
    if not _shared[_SINCE]:
        _shared[_SINCE] = now
    since = now - _shared[_SINCE]
    if since > SILENT and not _shared[_SAID]:
        _shared[_SAID] = 1.0
        _say(f"storage does not answer since {since:.0f} s: waiting ({place}: {reason})")


def _report_end() -> None:
    if _shared[_SAID]:
        since = time.monotonic() - _shared[_SINCE]
        _say(f"storage answers again after {since:.0f} s")
    _shared[_SINCE] = _shared[_SAID] = 0.0


def _say(text: str) -> None:
    from lewel.ops.ranks import rank  # with torch, which no command line needs

    local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID"))
    if rank() == 0 or local == "0":
        print(text, file=sys.stderr, flush=True)
