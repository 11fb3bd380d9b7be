"""Exceptions that end a command with a message, each with its exit code."""

import signal

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


class LostRank(RunError):
    """Exit 1. Another rank ended or hangs; `said` where that is printed already."""

    def __init__(self, message: str, *, said: bool = False) -> None:
        super().__init__(message)
        self.said = said


class Interrupted(Exception):
    """Exit 128 + the signal. A run was stopped by a signal; its finished steps are saved."""

    def __init__(self, number: int, step: int | None = None) -> None:
        when = "before the first step" if step is None else f"after step {step}"
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")
        self.number, self.step = number, step


def system_message(error: OSError) -> str:
    """The message of an operating system error, for example a full disk or a missing folder."""
    return f"{error.filename or 'The system'}: {error.strerror or error}."
