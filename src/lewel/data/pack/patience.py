"""Repeats requests while storage does not answer, and tells outages from missing files."""

import errno
import mmap
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from lewel.data.pack.urls import without_secrets
from lewel.errors import StorageError, UserError

Answer = TypeVar("Answer")

FIRST_WAIT: Final = 0.5  # seconds before a failed request is repeated; doubled each time
LONGEST_WAIT: Final = 15.0
SILENT: Final = 10.0  # seconds of an outage before it is reported
NAME_TRIES: Final = 3  # requests before a host name that was never resolved is given up
SLICE: Final = 0.2  # seconds between two looks at the shared state while waiting
LATER: Final = (408, 425, 429)  # HTTP's statuses of 400 to 499 that ask to try again
# What no repetition mends: a missing file, missing rights, a wrong URL, a missing package.
FILES: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
LASTING: Final = (
    *FILES,
    ValueError,
    TypeError,
    ImportError,
)

NO_ENTRY: Final = ("Credentials", "Authentication", "error_perm")  # in names of back ends' errors
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


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
_resolved: set[str] = set()  # places whose host name was resolved before, here or in a parent


def stop_waiting(stopped: bool = True) -> None:
    """End all waits of this process and its data workers, or allow them again."""
    _shared[_STOPPED] = float(stopped)


def is_stopped() -> bool:
    """Whether waits are to end."""
    return bool(_shared[_STOPPED])


def answered(
    request: Callable[[], Answer], place: str, minutes: float, *, sends: bool = True
) -> Answer:
    """The answer to a request, repeated with growing pauses while storage does not answer.

    Raises OSError where storage answers that it cannot, StorageError after so many minutes, and
    UserError for a host name that was never resolved. A request that may send nothing, such as
    opening a file system, does not prove the name.
    """
    began, wait, tries = 0.0, FIRST_WAIT, 0
    while True:
        try:
            answer = request()
        except OSError as error:
            tries += 1
            unknown = _is_unknown_name(error)
            if not unknown:
                _resolved.add(place)
            if isinstance(error, (*LASTING, Refused)) and not unknown:
                raise
            began = began or time.monotonic()
            reason = str(error) or type(error).__name__
            if unknown and place not in _resolved and tries >= NAME_TRIES:
                raise UserError(
                    f"The host name of {place} cannot be resolved: check the URL, and the network "
                    "of this machine."
                ) from error
            _report_outage(place, reason)
            _pause(_chance.uniform(0.5, 1.0) * wait)
            wait = min(2 * wait, LONGEST_WAIT)
            if time.monotonic() - began > 60 * minutes or _shared[_STOPPED]:
                raise StorageError(
                    f"{place} has not answered for {minutes:g} minutes ({reason}): mend the "
                    "storage, or raise --storage-timeout."
                ) from error
        else:
            if sends:
                _resolved.add(place)
            if began:
                _report_end()
            return answer


def resolved(place: str) -> None:
    """Take a host name for a right one: the process that sent this place has reached it."""
    _resolved.add(place)


def _is_unknown_name(error: BaseException) -> bool:
    """Whether an error was caused by a host name that cannot be resolved."""
    cause: BaseException | None = error
    for _ in range(8):  # back ends wrap errors several times
        if cause is None:
            return False
        inner = getattr(cause, "os_error", cause)  # aiohttp's own
        if isinstance(inner, socket.gaierror):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def as_os_error(error: Exception, place: str) -> OSError:
    """The error of a back end of fsspec: an outage (OSError), or what lasts (Refused)."""
    text = without_secrets(str(error) or type(error).__name__, place)
    status = getattr(error, "status", getattr(error, "code", None))
    if isinstance(status, int) and 400 <= status < 500 and status not in LATER:
        return Refused(f"HTTP status {status}")
    if isinstance(status, int):
        return OSError(f"HTTP status {status}")
    if isinstance(error, OSError) and error.errno in FULL:
        return Refused(error.errno, error.strerror)
    lasts = isinstance(error, LASTING) or any(one in type(error).__name__ for one in NO_ENTRY)
    if text != str(error) or not isinstance(error, OSError):
        kind = next((one for one in FILES if isinstance(error, one)), Refused)
        return kind(text) if lasts else OSError(text)
    return error


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
