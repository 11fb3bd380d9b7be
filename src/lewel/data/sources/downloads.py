"""Downloads: locked, so that one process fetches at a time, and moved into place atomically."""

import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from urllib.error import HTTPError

from lewel.errors import UserError
from lewel.files import PARTIAL

VARIABLE: Final = "LEWEL_DATA"
DEFAULT: Final = "~/.cache/lewel"
TIMEOUT: Final = 20.0  # seconds without data before a download fails


def data_root() -> str:
    """The folder of all data sets that are opened by name."""
    return os.path.abspath(os.path.expanduser(os.environ.get(VARIABLE) or DEFAULT))


@contextmanager
def locked(root: str, name: str) -> Iterator[None]:
    """An exclusive lock between processes; others wait."""
    try:
        os.makedirs(root, exist_ok=True)
        file = open(os.path.join(root, f".{name}.lock"), "a")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise not_writable(root, error) from error
    with file:
        with suppress(OSError):  # a file system without locks
            fcntl.lockf(file, fcntl.LOCK_EX)  # released when the process ends, however it ends
        yield


@contextmanager
def staged(root: str, name: str, archives: Sequence[str]) -> Iterator[str]:
    """A temporary folder to download and unpack into; moved into the root if nothing failed.

    torchvision takes any existing folder for a complete data set, also one that was unpacked only
    until the disk was full or the process killed. Archives in the root are linked into the folder.
    """
    temp = os.path.join(root, f".{name}{PARTIAL}")
    shutil.rmtree(temp, ignore_errors=True)  # left by a killed process; we hold the lock
    try:
        os.makedirs(temp)
        for archive in archives:
            if os.path.isfile(os.path.join(root, archive)):
                link = os.path.join(temp, archive)
                os.makedirs(os.path.dirname(link), exist_ok=True)
                os.symlink(os.path.join(root, archive), link)
        with _socket_timeout():
            yield temp
        for archive in archives:
            if os.path.islink(link := os.path.join(temp, archive)):
                os.unlink(link)
        _move(temp, root)
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def reason_of(error: BaseException) -> str:
    """Why a download failed, in one line."""
    if isinstance(error, HTTPError):
        return f"the server returned {error.code} {error.reason}"
    cause = getattr(error, "reason", None) or error  # a URLError wraps the cause
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    # With several mirrors the last line is about the last of them.
    last = text.strip().splitlines()[-1].strip()
    last = re.sub(r"^<urlopen error (?:\[Errno -?\d+\] )?(.*)>$", r"\1", last).rstrip(".")
    return last if last[1:2].isupper() else last[:1].lower() + last[1:]


def not_writable(root: str, error: OSError) -> UserError:
    """The error for a root that is full or not writable."""
    return UserError(
        f"Cannot write to {root}, where data sets are kept ({reason_of(error)}): make room or make "
        f"it writable, or set {VARIABLE} to another folder."
    )


@contextmanager
def _socket_timeout() -> Iterator[None]:
    """Set a socket timeout: torchvision sets none, and would wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _move(source: str, target: str) -> None:
    """Move the content of a folder into another; new subfolders are moved in one rename."""
    with os.scandir(source) as entries:
        for entry in entries:
            there = os.path.join(target, entry.name)
            if entry.is_dir(follow_symlinks=False) and os.path.isdir(there):
                _move(entry.path, there)
            else:
                os.replace(entry.path, there)
