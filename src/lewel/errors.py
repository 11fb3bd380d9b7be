"""Exceptions that end a command with a message, each with its exit code."""

import errno
import os
import signal
from pathlib import Path

# Ctrl-C, a stop by the system, a closed terminal, Ctrl-\\, and SLURM's warning before its limit.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def signals_to_heed() -> list[signal.Signals]:
    """The signals that stop a run; a SIGHUP that is ignored from outside (nohup) is left so."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [one for one in STOPPING if one != signal.SIGHUP or not ignored]


class UserError(Exception):
    """Exit 2. Wrong input: names the input, its value, what was expected and the fix."""


class RunError(Exception):
    """Exit 1. A run that cannot continue: names the cause and what has been saved."""


class StorageError(RunError):
    """Exit 1. Storage has not answered for --storage-timeout minutes."""

    def __init__(self, message: str) -> None:
        # torch wraps what a data worker raises into the text of its traceback.
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].strip())


class LostRank(RunError):
    """Exit 1. Another rank ended or hangs; `said` where that is printed already."""

    def __init__(self, message: str, *, said: bool = False) -> None:
        super().__init__(message)
        self.said = said


class Interrupted(Exception):
    """Exit 128 + the signal. A run was stopped by a signal; its finished steps are saved."""

    def __init__(self, number: int, step: int | None = None, when: str | None = None) -> None:
        when = when or ("before the first step" if step is None else f"after step {step}")
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")
        self.number, self.step = number, step


def state_of(path: str | os.PathLike[str]) -> str:
    """What a path is that is not what was expected: missing, a folder, a link to itself, ..."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "is a link that leads back to itself"
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            target = os.readlink(path) if os.path.islink(path) else None
            return "does not exist" if target is None else f"is a broken link to {target}"
        return f"cannot be read ({(error.strerror or type(error).__name__).lower()})"
    except ValueError:  # a null byte, which no name has
        return "does not exist"
    if os.path.isdir(path):
        return "is a folder"
    return "is a file" if os.path.isfile(path) else "is neither a file nor a folder"


def load_reason(error: Exception) -> str:
    """Why torch cannot load a file, without its advice to load it with weights_only=False."""
    first = (str(error).splitlines() or [""])[0].rstrip(".")
    known = isinstance(error, RuntimeError | OSError) and "eights" not in first
    return first if first and known else "it is not a file of tensors that torch wrote"


# What the system reports of a path that a user gave; a full disk, for example, is no wrong input.
OF_PATHS = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)


def too_many_files(error: BaseException) -> bool:
    """Whether the limit of open files was reached, in this process or in a data worker."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return os.strerror(errno.EMFILE) in str(error)  # an error of a worker has lost its number


def system_message(error: OSError) -> str:
    """The message of an operating system error, for example a full disk or a missing folder."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR) and (path := error.filename):
        wrong = next((one for one in (Path(path), *Path(path).parents) if one.is_file()), None)
        if wrong is not None:
            below = "" if wrong == Path(path) else f" (for {path})"
            return f"{wrong} is a file, expected a folder{below}: choose another place."
    fix = ": raise the limit by `ulimit -n 4096`" if too_many_files(error) else ""
    return f"{error.filename or 'The system'}: {error.strerror or error}{fix}."
