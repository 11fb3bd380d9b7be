"""Saving and stopping at the same steps on all ranks: by signals, by time, by lost storage."""

import time

from lewel.errors import RunError, StorageError
from lewel.ops.ranks import gather_objects, highest, rank, ranks
from lewel.train.clock import Clock
from lewel.train.feed import Feed
from lewel.train.interrupt import Interruption
from lewel.train.lost_ranks import resumption, saving, watched_step
from lewel.train.monitor import FiniteWatch
from lewel.train.run import Training

WAIT_SECONDS = 0.5  # between two exchanges while a rank has no batch
POLL_SECONDS = 5.0  # between two exchanges of signals: heard in 10 s also where steps get slower


class Saver:
    """Saves a run; all ranks save and stop at the same steps."""

    def __init__(self, run: Training, interruption: Interruption) -> None:
        self.run, self.interruption = run, interruption
        self.finite = FiniteWatch(run.fabric.device)
        self.saved = time.monotonic()
        self.next_poll, self.polled = 0, (run.step, self.saved)
        self.feed: Feed | None = None
        self.clock = Clock()

    def check_corrupt(self) -> None:
        """Save and stop if too many images are corrupt."""
        run = self.run
        try:
            run.corrupt_images.check(run.step * run.plan.order.batch_size, run.fabric.device)
        except RunError:
            if run.unsaved:
                self.write()
            raise

    def save(self) -> None:
        """Called by all ranks; rank 0 writes."""
        self.check_corrupt()
        if self.run.unsaved:
            self.write()

    def write(self) -> None:
        """Write a checkpoint of finite weights, and what belongs to it."""
        run = self.run
        self.finite.check(run.step, run.method)
        run.metrics.flush(sync=True)
        if rank() == 0:
            with saving(run.step):
                run.on_save(run)  # before the checkpoint: a finished run always has its exports
                run.checkpoints.save(run.step, run.state())
                run.metrics.keep_summary()
        run.checkpoints.newest, self.saved = run.step, time.monotonic()

    def poll(self) -> tuple[int, int]:
        """The signal to stop by (or 0) and whether a save is due, the maximum over all ranks.

        Several GPUs exchange this at log steps, where they synchronise anyway, and every few
        seconds.
        """
        plan, device, step = self.run.plan, self.run.fabric.device, self.run.step
        many_gpus = ranks() > 1 and device.type == "cuda"
        if many_gpus and step % plan.log_every and step < self.next_poll:
            return 0, 0
        steps = self.steps_to_next_poll()
        while True:
            late = time.monotonic() - self.saved > 60 * plan.checkpoint_minutes
            ready, failed = self.steps_ready()
            mine = [self.interruption.number or 0, int(late), -min(steps, ready), int(failed)]
            with watched_step(step - 1, taken=False):  # a GPU may still be in the last one
                stop, due, fewest, lost = highest(mine, device)
            if stop or lost or fewest:
                break
            assert self.feed is not None
            with self.clock.idle():
                self.feed.wait(WAIT_SECONDS)
        self.next_poll = step - fewest
        if lost and not stop:
            self.stop_for_storage()
        return stop, due

    def steps_ready(self) -> tuple[int, bool]:
        """For how many steps this rank has batches, and whether there will be no more of them."""
        if self.feed is None:
            return 1 << 30, False
        ready = self.feed.ready // self.run.plan.order.accumulate
        return ready, ready == 0 and self.feed.error is not None

    def stop_for_storage(self) -> None:
        """Save and stop: a rank has waited for its batch for too long, or has failed to read it."""
        assert self.feed is not None
        error = self.feed.error
        if error is not None and not isinstance(error, StorageError):
            raise error
        reasons = gather_objects([] if error is None else [str(error)])
        if self.run.unsaved:
            self.write()
        raise StorageError(f"{reasons[0]} {resumption(self.run.step)}")

    def steps_to_next_poll(self) -> int:
        """How many steps take a few seconds, by those since the last poll; 1 at first."""
        (step, then), self.polled = self.polled, (self.run.step, time.monotonic())
        each = (self.polled[1] - then) / max(1, self.run.step - step)
        return max(1, int(POLL_SECONDS / max(each, 1e-3))) if self.run.step > step else 1
