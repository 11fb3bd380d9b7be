"""One sentence where a rank is lost: which one, what is saved, and how to resume."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from lewel.errors import STOPPING, Interrupted, LostRank
from lewel.ops.ranks import rank, ranks
from lewel.train.heartbeat import Heartbeat, Lost, connect
from lewel.train.torchrun import record_failure

NOTICED = 10.0  # seconds in which a failed collective is followed by the news of a lost rank
GRACE = 5.0  # seconds for the main thread to end by itself
NEWS = 5.0  # seconds in which a rank that srun or torchrun ends learns why
SAVING = 600.0  # seconds that a checkpoint may take to be written meanwhile
CONNECTION = ("peer", "NCCL", "gloo", "TCPStore")  # words in the errors of collectives

Item = TypeVar("Item")
_writing = threading.Lock()
_current: Heartbeat | None = None


def sentence(lost: Lost, step: int | None) -> str:
    """Which rank is lost and why, the step that is saved, and how to resume."""
    return f"Rank {lost.rank} {lost.why}. {resumption(step)}"


def resumption(step: int | None) -> str:
    """What is saved, and how to resume."""
    if step is None:
        return "Nothing is saved yet: run the same command to start again."
    return f"Training is saved up to step {step}: run the same command to resume."


def lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another rank is lost."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in CONNECTION)


@contextmanager
def saving(step: int) -> Iterator[None]:
    """Within it rank 0 writes the checkpoint of a step: a lost rank does not cut it off."""
    with _writing:
        yield
    note_saved(step)


def note_saved(step: int) -> None:
    """On rank 0: a step is saved."""
    if _current is not None and rank() == 0:
        _current.saved(step)


def watched_step(step: int, *, taken: bool = True) -> AbstractContextManager[None]:
    """Within it the main thread takes a step: one that hangs is noticed where ranks are watched.

    Or it waits for the device after the step was `taken`.
    """
    return nullcontext() if _current is None else _current.steps.within(step, taken=taken)


def watched_reads(batches: Iterable[Item]) -> Iterator[Item]:
    """The batches of a run: a rank that hangs while it reads one is known as the cause."""
    return iter(batches) if _current is None else _current.steps.reads(batches)


class WatchedRanks:
    """Work of all ranks, in a `with`: where a rank is lost, the others end with a sentence.

    One of them prints it, or `report` is called on each. The file `saved_in` holds the step that
    is saved.
    """

    def __init__(
        self,
        minutes: float,
        report: Callable[[str], None] | None = None,
        saved_in: Path | None = None,
    ) -> None:
        self.minutes, self.report, self.saved_in = minutes, report, saved_in
        self.noticed, self.ended = threading.Event(), threading.Event()
        self.beat: Heartbeat | None = None
        self._before: signal._HANDLER | None = None

    def __enter__(self) -> None:
        global _current
        if ranks() > 1:
            with suppress(ValueError):  # not the main thread
                self._before = signal.signal(signal.SIGTERM, self._end)
            peers = connect(os.environ["MASTER_ADDR"])
            self.beat = Heartbeat(rank(), peers, 60 * self.minutes, self._on_lost, self._on_saved)
            self.beat.start()
            _current = self.beat

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        global _current
        if self.beat is None:
            return
        try:
            self._leave(self.beat, error)
        finally:
            self.ended.set()
            _current = None
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)

    def _end(self, number: int, frame: object) -> None:
        """SIGTERM outside of training: end, but print first that another rank is lost."""
        self.noticed.wait(NEWS)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _leave(self, beat: Heartbeat, error: BaseException | None) -> None:
        """Tell the others how this rank ends; explain a failed collective by the lost rank."""
        if error is None or isinstance(error, Interrupted):
            beat.close()
        elif lost_connection(error):
            with _signals_ignored():
                self.noticed.wait(NOTICED)
            if beat.lost is None:
                beat.close(failure=str(error))
                reason = str(error).splitlines()[0]
                text = f"A connection was lost ({reason}). {resumption(beat.step)}"
                raise LostRank(text) from None
            raise LostRank(sentence(beat.lost, beat.step), said=True) from None
        else:
            beat.close(failure=str(error) or type(error).__name__)

    def _on_lost(self, lost: Lost) -> None:
        """In the thread of the heartbeat: print, and end the process where it does not end."""
        assert self.beat is not None
        text = sentence(lost, self.beat.step)
        record_failure(text)
        if self.report is not None:
            self.report(text)
        elif _prints(lost):
            print(f"{text}\n", end="", file=sys.stderr, flush=True)  # one write: srun prints, too
        self.noticed.set()
        if not self.ended.wait(GRACE):  # the main thread waits for the lost rank, or saves
            _writing.acquire(timeout=SAVING)
            os._exit(1)

    def _on_saved(self, step: int) -> None:
        if self.saved_in is not None:
            self.saved_in.write_text(str(step), encoding="utf-8")


def _prints(lost: Lost) -> bool:
    """Whether this rank prints that another one is lost: one rank does, or one of each node."""
    if lost.printed or lost.rank == rank():  # another one prints that this one is stuck
        return False
    first_of_node = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", 0))) == 0
    return rank() == 0 if lost.rank else rank() == 1 or first_of_node


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """torchrun and srun end the other ranks by a signal, perhaps before the sentence is printed."""
    before = {}
    with suppress(ValueError):  # not the main thread
        before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
