"""Ctrl-C, SIGTERM and SLURM's SIGUSR1 end a run at the next step boundary, after a save."""

import signal
from types import FrameType, TracebackType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interruption:
    """While entered, the first such signal is only noted; a second one ends at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "Interruption":
        for number in STOPPING:
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: the caller handles signals
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)
