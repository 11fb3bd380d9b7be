"""Time and memory of k-NN by a bank in a file.

`python -m tests.evaluate.measure_knn 1000000 512 1000` makes a bank of a million synthetic
features of 512 numbers in a nameless file, and classifies 1,000 queries by it.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from lewel.evaluate.knn import knn_best
from lewel.evaluate.room import Room

ROWS = 10_000  # that are made at a time


def own_bytes() -> int:
    """Memory of this process without mapped files, which the system may drop at any time."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Peak(threading.Thread):
    """The largest own memory while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.most = own_bytes()
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.wait(0.005):
            self.most = max(self.most, own_bytes())

    def stop(self) -> float:
        """MB beyond what there was at the start."""
        self.ends.set()
        self.join()
        return (self.most - self.before) / 1e6


def main() -> None:
    count, width, many = (int(word) for word in sys.argv[1:4])
    draw, shape = np.random.default_rng(0), (count, width)
    with tempfile.TemporaryDirectory() as place:
        bank = Room(Path(place)).mapped(shape, 4 * count * width)
        for start in range(0, count, ROWS):
            rows = draw.standard_normal((min(ROWS, count - start), width), np.float32)
            bank[start : start + len(rows)] = torch.from_numpy(rows)
        labels = torch.from_numpy(draw.integers(0, 1000, count))
        queries = torch.from_numpy(draw.standard_normal((many, width), np.float32))
        peak = Peak()
        peak.start()
        began, used = time.monotonic(), time.process_time()
        knn_best(bank, labels, queries, [20, 200], classes=1000, streamed=True)
        took, cpu = time.monotonic() - began, time.process_time() - used
        print(
            f"{count:,} x {width} ({4 * count * width / 1e9:.1f} GB in a file), {many:,} queries: "
            f"{took:.0f} s, {cpu:.0f} s of CPU time, {peak.stop():.0f} MB beside the bank"
        )


if __name__ == "__main__":
    main()
