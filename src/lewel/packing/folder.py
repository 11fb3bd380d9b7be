"""The folder that shards are packed into: by one process at a time, with one set of settings."""

import errno
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lewel.data.packs import CLAIM
from lewel.errors import RunError, UserError
from lewel.files import write_atomically


@contextmanager
def held(out: Path, claim: dict[str, Any]) -> Iterator[None]:
    """A folder that this process alone packs into, always with the same settings."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, expected a folder to pack into.")
    path = out / CLAIM
    if out.exists() and not path.exists() and any(_is_foreign(entry) for entry in out.iterdir()):
        raise UserError(f"{out} holds other files and no pack: choose a new or empty folder.")
    try:
        (out / "records").mkdir(parents=True, exist_ok=True)
        lock = open(out / ".lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from None
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"Another process is packing into {out}: wait for it.") from None
        for partial in out.rglob("*.partial"):  # left by a kill; nobody else writes here
            partial.unlink()
        if path.exists():
            refuse_another_pack(out, read_claim(path), claim)
        text = json.dumps(claim, indent=1)
        write_atomically(path, lambda aside: aside.write_text(text, encoding="utf-8"))
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise RunError(
                f"The disk of {out} is full ({error.strerror}): make room and run the same command "
                "again; it goes on after the shards that are finished."
            ) from None


def read_claim(path: Path) -> dict[str, Any]:
    """The settings that a folder was packed with."""
    try:
        claim: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError:
        raise UserError(f"{path} is damaged: remove the folder, and pack anew.") from None
    return claim


def _is_foreign(path: Path) -> bool:
    """Whether an entry is not what a pack leaves that was killed in its first moment."""
    return path.name not in (".lock", "records") and path.suffix != ".partial"


def refuse_another_pack(out: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A folder holds one pack: with other settings it would be half of each."""
    different = [
        f"{key} was {before.get(key)}, is {now.get(key)}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if different:
        raise UserError(
            f"{out} holds another pack ({'; '.join(different)}): choose another folder, or use the "
            "same settings to go on with it."
        )
