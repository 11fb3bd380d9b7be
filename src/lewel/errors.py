"""The ways a command ends early on purpose, each with its exit code."""

import signal


class UserError(Exception):
    """Exit 2. Wrong input: one sentence with the thing, its value, what was expected, a fix."""


class RunError(Exception):
    """Exit 1. A run that cannot go on: one sentence that says what was found and what is safe."""


class Interrupted(Exception):
    """Exit 128 + the signal. A run was asked to stop, and has saved the steps it has taken."""

    def __init__(self, number: int, step: int | None = None) -> None:
        when = "before the first step" if step is None else f"after step {step}"
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")
        self.number, self.step = number, step


def system_sentence(error: OSError) -> str:
    """What the system refused: a disk that is full, a folder that vanished."""
    return f"{error.filename or 'The system'}: {error.strerror or error}."
