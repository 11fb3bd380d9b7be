"""Files fetched from the internet: by one process at a time, and whole or not at all."""

import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.error import HTTPError

from lewel.errors import UserError

VARIABLE: Final = "LEWEL_DATA"
DEFAULT: Final = "~/.cache/lewel"
SILENCE: Final = 20.0  # seconds without a byte after which a server is given up


def data_root() -> str:
    """The folder of all data sets that are opened by name."""
    return os.path.abspath(os.path.expanduser(os.environ.get(VARIABLE) or DEFAULT))


@contextmanager
def locked(root: str, name: str) -> Iterator[None]:
    """Only one process at a time is inside; another waits."""
    try:
        os.makedirs(root, exist_ok=True)
        file = open(os.path.join(root, f".{name}.lock"), "a")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise not_writable(root, error) from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)  # gone with the process, however it ends
        except OSError as error:
            raise not_writable(root, error) from error
        yield


@contextmanager
def staged(root: str, name: str, archives: Sequence[str]) -> Iterator[str]:
    """A folder to download and unpack into; what it holds joins the root if nothing failed.

    Torchvision takes a folder that exists for a whole data set, also one that was unpacked up to
    a full disk or a kill. Archives that the user has put into the root are found from here.
    """
    aside = os.path.join(root, f".{name}.partial")
    shutil.rmtree(aside, ignore_errors=True)  # left by a kill; only the lock's holder is here
    try:
        os.makedirs(aside)
        for archive in archives:
            if os.path.isfile(os.path.join(root, archive)):
                link = os.path.join(aside, archive)
                os.makedirs(os.path.dirname(link), exist_ok=True)
                os.symlink(os.path.join(root, archive), link)
        with _impatience():
            yield aside
        for archive in archives:
            if os.path.islink(link := os.path.join(aside, archive)):
                os.unlink(link)
        _move(aside, root)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def reason_of(error: BaseException) -> str:
    """Why a download failed, in a few words on one line."""
    if isinstance(error, HTTPError):
        return f"the server answers {error.code} {error.reason}"
    cause = getattr(error, "reason", None) or error  # a URLError only wraps what happened
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    # Where there are mirrors, the last line is about the last of them.
    last = text.strip().splitlines()[-1].strip()
    last = re.sub(r"^<urlopen error (?:\[Errno -?\d+\] )?(.*)>$", r"\1", last).rstrip(".")
    return last if last[1:2].isupper() else last[:1].lower() + last[1:]


def not_writable(root: str, error: OSError) -> UserError:
    """The sentence for a root that is full or forbidden."""
    return UserError(
        f"Cannot write to {root}, where data sets are kept ({reason_of(error)}): make room or make "
        f"it writable, or set {VARIABLE} to another folder."
    )


@contextmanager
def _impatience() -> Iterator[None]:
    """Give up silent servers: torchvision sets no time limit, and would wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _move(source: str, target: str) -> None:
    """Move what a folder holds into another; a folder that is new there arrives as a whole."""
    with os.scandir(source) as entries:
        for entry in entries:
            there = os.path.join(target, entry.name)
            if entry.is_dir(follow_symlinks=False) and os.path.isdir(there):
                _move(entry.path, there)
            else:
                os.replace(entry.path, there)
