"""A main thread that is stuck in a step is noticed; long work elsewhere is not."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lewel.data.sources.scenes import Scenes
from lewel.train import loop, lost_ranks
from lewel.train.lost_ranks import watched_reads, watched_step
from lewel.train.metrics import Metrics
from lewel.train.run import Training
from lewel.train.stalls import StepWatch
from tests.running import tiny_run
from tests.train.test_heartbeat import SECONDS, Ranks


def after_steps(*, each: float = 0.0) -> StepWatch:
    """A watch of a rank that has taken two steps."""
    watch = StepWatch()
    for step in range(2):
        with watch.within(step):
            time.sleep(each)
    return watch


def held(watch: StepWatch, *, reading: bool, step: int = 2) -> threading.Event:
    """A main thread that stays in a step until the event is set."""
    released, begun = threading.Event(), threading.Event()

    def batches() -> Iterator[int]:
        begun.set()
        released.wait(60)
        yield 1

    def work() -> None:
        with watch.within(step):
            if reading:
                next(watch.reads(batches()))
            else:
                begun.set()
                released.wait(60)

    threading.Thread(target=work, daemon=True).start()
    begun.wait(10)
    return released


def test_only_a_long_step_after_the_first_is_stuck() -> None:
    watch = StepWatch()
    assert watch.stuck(0.0) is None  # between steps
    with watch.within(0):
        time.sleep(0.01)
        assert watch.stuck(0.0) is None  # the first one compiles
    with watch.within(1):
        time.sleep(0.01)
        assert watch.stuck(60.0) is None
        assert watch.stuck(0.003) == "has not finished step 2 for 5e-05 minutes (--rank-timeout)"
        watch.forgive(5.0)  # the process was stopped
        assert watch.stuck(0.003) is None
    assert watch.stuck(0.0) is None
    with watch.within(2):
        time.sleep(0.01)
    assert watch.longest >= 0.01
    with watch.within(3):
        time.sleep(0.01)
        watch.longest = 60.0
        assert watch.stuck(0.003) is None  # ten times the longest step are not over
        watch.longest = 0.0
        assert watch.stuck(0.003) is not None


def test_waiting_for_a_step_that_was_taken_is_watched_and_is_no_step() -> None:
    watch = StepWatch()
    with watch.within(0, taken=False):
        time.sleep(0.01)
        assert watch.stuck(0.0) is None
    assert watch.taken == 0  # so the first step may still take any time
    watch = after_steps()
    watch.longest = 0.0  # on a busy machine even an empty step may take long
    with watch.within(1, taken=False):
        time.sleep(0.01)
        assert watch.stuck(0.003) == "has not finished step 2 for 5e-05 minutes (--rank-timeout)"
    assert watch.taken == 2


def test_reading_is_told_from_computing() -> None:
    watch = after_steps()
    with watch.within(2):
        for batch in watch.reads([1, 2]):
            assert batch and not watch.reading
    released = held(watch, reading=True, step=3)
    assert watch.reading
    time.sleep(0.1)
    assert "has waited for its batch of step 4 for" in str(watch.stuck(0.05))
    released.set()


@pytest.mark.parametrize("reader", [0, 2])
def test_the_rank_that_waits_for_its_batch_is_the_cause(reader: int) -> None:
    """The others are in the same step, and wait for it."""
    ranks = Ranks(3)
    for number, beat in enumerate(ranks.beats):
        beat.steps = after_steps()
        held(beat.steps, reading=number == reader)
    began = time.monotonic()
    ranks.start()
    assert ranks.wait(ranks.noticed, 3)  # type: ignore[arg-type]
    assert SECONDS - 0.5 < time.monotonic() - began < 10 * SECONDS
    assert {lost.rank for lost in ranks.noticed.values()} == {reader}
    why = {lost.why for lost in ranks.noticed.values()}
    assert why == {"has waited for its batch of step 3 for 0.0333 minutes (--rank-timeout)"}


def test_a_step_that_no_rank_finishes_ends_the_run() -> None:
    ranks = Ranks(2)
    for beat in ranks.beats:
        beat.steps = after_steps()
        held(beat.steps, reading=False)
    ranks.start()
    assert ranks.wait(ranks.noticed, 2)  # type: ignore[arg-type]
    assert {lost.rank for lost in ranks.noticed.values()} == {0}
    assert "has not finished step 3" in ranks.noticed[1].why
    assert "or waits for another rank that does" in ranks.noticed[1].why


def test_ranks_that_wait_for_a_checkpoint_or_a_probe_are_not_stuck() -> None:
    """Rank 0 works between two steps; the other one waits for it in the next step."""
    ranks = Ranks(2, seconds=0.5)
    for beat in ranks.beats:
        beat.steps = after_steps()
    released = held(ranks.beats[1].steps, reading=False)
    ranks.start()
    time.sleep(3.0)
    assert not ranks.noticed
    released.set()
    ranks.beats[1].close()
    ranks.beats[0].close()


def test_without_other_ranks_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_ranks, "_current", None)
    with watched_step(3):
        assert list(watched_reads([1, 2])) == [1, 2]


def test_the_loop_is_watched_in_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on several ranks, with the probe and the checkpoints outside of the steps."""
    watch, seen = StepWatch(), []
    taken, read = loop.take_step, Scenes.read

    def observed(run: Training, *rest: Any) -> Any:
        seen.append(("step", run.step == watch.step, watch.since is not None, watch.reading))
        return taken(run, *rest)

    def observed_read(source: Scenes, index: int) -> Any:
        seen.append(("read", watch.since is not None, watch.reading))
        return read(source, index)

    def saved(step: int) -> None:
        seen.append(("saved", watch.since is not None))

    def waits(name: str, work: Any) -> Any:
        def observed_wait(*arguments: Any, **options: Any) -> Any:
            seen.append((name, watch.since is not None))
            return work(*arguments, **options)

        return observed_wait

    monkeypatch.setattr("lewel.train.saver.highest", waits("poll", lambda numbers, _: numbers))
    monkeypatch.setattr(Metrics, "flush", waits("flush", Metrics.flush))
    monkeypatch.setattr(loop, "take_step", observed)
    monkeypatch.setattr(Scenes, "read", observed_read)
    monkeypatch.setattr(lost_ranks, "_current", SimpleNamespace(steps=watch, saved=saved))
    flags = ("--epochs", "1", "--knn.every", "0", "--workers", "0")
    assert tiny_run(tmp_path / "run", *flags) == 0
    assert watch.taken == 4 and watch.since is None
    assert [one for one in seen if one[0] == "step"] == [("step", True, True, False)] * 4
    assert set(seen) >= {("read", True, True), ("saved", False)}
    assert ("saved", True) not in seen
    assert ("poll", True) in seen and ("poll", False) not in seen  # a GPU computes until then
    assert ("flush", True) in seen
