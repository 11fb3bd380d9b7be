"""The folder that shards are packed into: locked, and with one set of settings."""

import errno
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lewel.data.pack.format import MANIFEST
from lewel.errors import RunError, UserError
from lewel.files import write_atomically


@contextmanager
def locked_folder(out: Path, manifest: dict[str, Any]) -> Iterator[None]:
    """Lock a folder for packing, and refuse settings that differ from its manifest."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, expected a folder to pack into.")
    path = out / MANIFEST
    if out.exists() and not path.exists() and any(map(_is_unrelated, out.iterdir())):
        raise UserError(f"{out} holds other files, no packed data: use a new or empty folder.")
    if path.exists():  # before anything is written
        refuse_other_settings(out, read_manifest(path), manifest)
    try:
        (out / "records").mkdir(parents=True, exist_ok=True)
        lock = open(out / ".lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from None
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"Another process is packing into {out}: wait until it has finished."
            ) from None
        for partial in out.rglob("*.partial"):  # left by a killed process; we hold the lock
            partial.unlink()
        if path.exists():
            refuse_other_settings(out, read_manifest(path), manifest)
        text = json.dumps(manifest, indent=1)
        write_atomically(path, lambda temp: temp.write_text(text, encoding="utf-8"))
        yield


@contextmanager
def full_disk_explained(out: Path) -> Iterator[None]:
    """A full disk is one message."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise RunError(
            f"The disk of {out} is full ({error.strerror}): make room and run the same command "
            "again, which resumes after the finished shards."
        ) from None


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a folder: the settings that it was packed with."""
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        if not isinstance(manifest, dict):
            raise ValueError("expected keys and values")
    except ValueError:
        raise UserError(f"{path} is damaged: delete the folder and pack again.") from None
    return manifest


def _is_unrelated(path: Path) -> bool:
    """Whether an entry was not left by a packing process that was killed at its start."""
    return path.name not in (".lock", "records") and path.suffix != ".partial"


def refuse_other_settings(out: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise UserError if a folder was packed from other data or with other settings."""
    different = [
        f"{key} was {before.get(key)}, is {now.get(key)}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if different:
        raise UserError(
            f"{out} holds data packed with other settings ({'; '.join(different)}): choose "
            "another folder, or use the same settings to resume."
        )
