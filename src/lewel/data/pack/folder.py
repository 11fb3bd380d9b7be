"""A folder that shards are packed into: locked, and with one set of settings."""

import errno
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from lewel.data.pack.format import MANIFEST
from lewel.data.pack.stores import Folder, Store
from lewel.errors import RunError, UserError
from lewel.files import PARTIAL, lock, write_atomically

RECORDS: Final = "records"  # the folder of these; lies there before the manifest, empty
Record = dict[str, Any]  # of a finished shard, in records/


class Target(Protocol):
    """Where shards are packed to: a folder or a URL."""

    shown: str  # in messages

    def claimed(self, manifest: dict[str, Any]) -> Any:
        """A context in which shards may be written; refuses settings other than its manifest's."""

    def write(self, file: str, fill: Callable[[Path], object]) -> None:
        """Write a file that `fill` makes; readers see all of it or nothing."""

    def read(self, file: str) -> bytes:
        """All bytes of a file; raises FileNotFoundError."""

    def remove(self, file: str) -> None:
        """Delete a file, if there is one."""

    def is_intact(self, file: str, record: Record) -> bool:
        """Whether a shard is as its record says."""

    def store(self) -> Store:
        """Its files, for reading."""


class FolderTarget:
    """A folder on this machine, or one that all nodes see."""

    def __init__(self, path: Path) -> None:
        self.path, self.shown = path, str(path)

    @contextmanager
    def claimed(self, manifest: dict[str, Any]) -> Iterator[None]:
        """Lock the folder, and refuse settings that differ from its manifest."""
        out, path = self.path, self.path / MANIFEST
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file, expected a folder to pack into.")
        if out.exists() and not path.exists() and any(map(_is_unrelated, out.iterdir())):
            raise UserError(f"{out} holds other files, no packed data: use a new or empty folder.")
        if path.exists():  # before anything is written
            refuse_other_settings(self.shown, path.read_bytes(), manifest)
        try:
            (out / RECORDS).mkdir(parents=True, exist_ok=True)
            held = open(out / ".lock", "a")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise UserError(f"{out} cannot be written: {error.strerror}.") from None
        with held:
            busy = f"Another process is packing into {out}: wait until it has finished."
            if lock(held, busy) is None:
                for partial in out.rglob(f"*{PARTIAL}"):  # left by a killed process
                    partial.unlink()
            if path.exists():
                refuse_other_settings(self.shown, path.read_bytes(), manifest)
            write_text(self, MANIFEST, json.dumps(manifest, indent=1))
            yield

    def write(self, file: str, fill: Callable[[Path], object]) -> None:
        write_atomically(self.path / file, fill)

    def read(self, file: str) -> bytes:
        return (self.path / file).read_bytes()

    def remove(self, file: str) -> None:
        (self.path / file).unlink(missing_ok=True)

    def is_intact(self, file: str, record: Record) -> bool:
        try:
            with (self.path / file).open("rb") as shard:
                return bool(hashlib.file_digest(shard, "sha256").hexdigest() == record["sha256"])
        except FileNotFoundError:
            return False

    def store(self) -> Store:
        return Folder(str(self.path))


def write_text(target: Target, file: str, text: str) -> None:
    """Write a small text file."""
    target.write(file, lambda temp: temp.write_text(text, encoding="utf-8"))


@contextmanager
def full_disk_explained(shown: str) -> Iterator[None]:
    """A full disk is one message."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise RunError(
            f"The disk of {shown} is full ({error.strerror}): make room and run the same command "
            "again, which resumes after the finished shards."
        ) from None


def refuse_other_settings(shown: str, text: bytes, now: dict[str, Any]) -> None:
    """Raise UserError if a manifest is of other data or other settings, or damaged."""
    try:
        before: dict[str, Any] = json.loads(text)
        if not isinstance(before, dict):
            raise ValueError("expected keys and values")
    except ValueError:
        raise UserError(
            f"{shown}/{MANIFEST} is damaged: delete the folder and pack again."
        ) from None
    different = [
        f"{key} was {before.get(key)}, is {now.get(key)}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if different:
        raise UserError(
            f"{shown} holds data packed with other settings ({'; '.join(different)}): choose "
            "another folder, or use the same settings to resume."
        )


def _is_unrelated(path: Path) -> bool:
    """Whether an entry was not left by a packing process that was killed at its start."""
    if path.name == RECORDS:
        return not path.is_dir() or any(path.iterdir())
    if path.name == ".lock":
        return path.stat().st_size > 0
    return path.suffix != PARTIAL
