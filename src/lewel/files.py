"""Atomic writes, and which files lewel wrote itself: these may be replaced, others are not."""

import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from lewel.errors import UserError

SEARCHED = 16_384  # bytes at both ends of a file that may hold the mark
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # some network file systems
PARTIAL = ".lewel-partial"  # ends the name of a file that is being written
ZIP_END = b"PK\5\6"  # begins the last record of a zip file, 22 bytes without a comment
# Lines around the YAML that lewel writes, by which a file that was cut is known.
FIRST_LINE = "# Written by lewel; the last line is `# end`."
LAST_LINE = "# end"
# Outputs in run folders of version 0.1, which marked no files.
OLD_NAMES = ("report.html", "maps.png", "maps.html", "features.npz")
OLD_FOLDERS = ("export", "predictions")
PNG_HEAD = 33  # bytes of a PNG before its second chunk


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path that a user gave, with ~ as a home folder; raises UserError where it cannot be one."""
    text = os.fspath(path)
    if not text:
        raise UserError("An empty name does not exist: write . for the current folder.")
    if "\0" in text:
        raise UserError(f"{text!r} does not exist: it holds a zero byte, which no path has.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0]
        raise UserError(
            f"{text} begins with {user}, a home folder that is not known: write the path in full, "
            f"or ./{user} for a folder of that name."
        ) from None


def write_atomically(path: Path, write: Callable[[Path], object], private: bool = False) -> None:
    """Write to a temporary file beside `path`, fsync it and rename it to `path`.

    A private file can be read by nobody else.
    """
    temp = path.with_name(path.name + PARTIAL)
    try:
        temp.unlink(missing_ok=True)  # left by a kill
        temp.touch(0o600 if private else 0o666)
        mode = temp.stat().st_mode  # what the umask allows; safetensors would choose 0600
        write(temp)
        temp.chmod(mode)
        with open(temp, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def lock(file: IO[Any], busy: str) -> str | None:
    """Lock an open file for this process; raises UserError(busy) where another one holds it.

    Returns the reason where the file system has no locks, as some network file systems.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # forked workers don't hold it
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise UserError(busy) from None
        return error.strerror or type(error).__name__
    return None


def try_lock(file: int) -> bool:
    """Try to lock a file, for all processes that inherit it; True where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in NO_LOCKS
    return True


def mark(command: str) -> str:
    """The text by which a file is known as the output of a command."""
    return f"written by lewel {command}"


def write_marked(path: Path, command: str, write: Callable[[Path], object]) -> None:
    """Write the output of a command atomically, with its mark.

    Zip files, PNGs and HTML pages get the mark here; other formats must hold it already.
    """

    def write_both(temp: Path) -> None:
        write(temp)
        _add_mark(temp, mark(command).encode("ascii"))
        assert is_output_of(temp, command)

    write_atomically(path, write_both)


def is_output_of(path: Path, command: str) -> bool:
    """Whether a file carries the mark of a command."""
    with path.open("rb") as file:
        head = file.read(SEARCHED)
        file.seek(-min(SEARCHED, path.stat().st_size), os.SEEK_END)
        return mark(command).encode("ascii") in head + file.read()


def refuse_foreign(path: Path, command: str, overwrite: bool = False) -> None:
    """Raise UserError if a file exists that this command did not write; call it before the work."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file that can be replaced: choose another --out.")
    if path.exists() and not overwrite and not _is_own(path, command):
        raise UserError(
            f"{path} exists and was not written by `lewel {command}`: choose another --out, or "
            "replace it with --overwrite."
        )


def refuse_unwritable(folder: Path) -> None:
    """Raise UserError for a folder that cannot be made or written; call it before the work."""
    try:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
        for one in missing:  # it is made where the first file is written
            one.rmdir()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UserError(f"--out {folder} cannot be written ({reason}): choose another.") from None
    if not writable:
        raise UserError(f"--out {folder} cannot be written (permission denied): choose another.")


def refuse_within(out: Path, data: str) -> None:
    """Raise UserError for an output in the data's own folder."""
    folder = user_path(data)
    inside = Path(os.path.realpath(out)).is_relative_to(os.path.realpath(folder))
    if folder.is_dir() and inside:
        raise UserError(
            f"{out} lies in the data {data}, and would become a part of it: choose a folder "
            "outside of it."
        )


def free_path(path: Path, command: str) -> Path:
    """The path, or a numbered one beside it where the file is another's."""
    number, free = 1, path
    while free.exists() and not _is_own(free, command):
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def add_zip_comment(path: Path, comment: bytes) -> None:
    """Add a comment to the end of a zip file, such as .npz or torch's .pth; readers skip it."""
    with path.open("r+b") as file:
        file.seek(-22, os.SEEK_END)
        end = file.read()
        assert end.startswith(ZIP_END) and end.endswith(b"\0\0"), f"{path} has a comment already"
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", len(comment)) + comment)


def with_end(text: str) -> str:
    """A text of lines between the first and last line that show that it is whole."""
    return f"{FIRST_LINE}\n{text}{LAST_LINE}\n"


def is_cut(text: str) -> bool:
    """Whether a text of `with_end` has lost its end; other texts have none."""
    begins = text.startswith(FIRST_LINE) or (text != "" and FIRST_LINE.startswith(text))
    return begins and LAST_LINE not in text.splitlines()


def set_aside(path: Path) -> None:
    """Rename a damaged file, so that nothing is lost where it is written again."""
    number, aside = 1, path.with_name(path.name + ".damaged")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    path.replace(aside)


def _is_own(path: Path, command: str) -> bool:
    """Whether a command may replace a file: it carries its mark, or version 0.1 wrote it."""
    if is_output_of(path, command):
        return True
    if path.name not in OLD_NAMES and path.parent.name not in OLD_FOLDERS:
        return False
    configs = (folder / "config.yaml" for folder in path.absolute().parents[:2])
    texts = [one.read_text(encoding="utf-8", errors="replace") for one in configs if one.is_file()]
    return any("keep_checkpoints:" in text and FIRST_LINE not in text for text in texts)


def _add_mark(path: Path, text: bytes) -> None:
    with path.open("rb") as file:
        first = file.read(16).lower()
    if first.startswith(b"pk"):
        add_zip_comment(path, text)
    elif first.startswith(b"\x89png"):
        content, chunk = path.read_bytes(), b"tEXtSoftware\0" + text
        chunk = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        path.write_bytes(content[:PNG_HEAD] + chunk + content[PNG_HEAD:])
    elif first.startswith(b"<!doctype html>"):
        head, end, rest = path.read_bytes().partition(b"\n")
        path.write_bytes(head + end + b"<!-- " + text + b" -->\n" + rest)
