"""Throughput by the number of processes: data loading workers, training ranks."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from lewel.bench.breakdown import draw_jpegs
from lewel.bench.timing import Bar
from lewel.data.sources.open import open_data
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import Order, TwoViews, make_loader
from lewel.errors import RunError

STEPS, BATCH = 48, 16  # number and size of the batches that data loading is timed on
TRAINING = {  # large enough that computation is not dwarfed by communication between ranks
    "--backbone": "resnet18",
    "--stem": "small",
    "--width": "16",
    "--image-size": "32",
    "--batch-size": "64",
    "--head.hidden": "256",
    "--head.dim": "64",
    "--head.aligned-dim": "64",
    "--optim.warmup-epochs": "0",
    "--knn.every": "0",
    "--workers": "0",
    "--log-every": "4",
    "--accelerator": "cpu",
    "--limit": "768",
    "--epochs": "1",
}


def speed_of_workers(
    counts: Sequence[int], data: str | None, image_size: int, rounds: int, bar: Bar
) -> list[float]:
    """Images per second read and cropped by so many workers, after a warm-up."""
    speeds: dict[int, list[float]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            draw_jpegs(Path(folder), image_size)
        source = open_data(data or folder, image_size=image_size).unlabelled
        dataset = TwoViews(source, (ViewRecipe(), ViewRecipe(blur=0.1)), image_size, seed=0)
        order = Order(len(source), min(BATCH, len(source)), seed=0)
        for _ in range(rounds):
            for count in counts:
                ahead = max(1, 2 * count)  # batches that are prefetched when the clock starts
                loader = iter(make_loader(dataset, order, 0, ahead + STEPS, count, False))
                for _ in range(ahead):
                    next(loader)
                begun = time.perf_counter()
                read = sum(len(batch.indices) for batch in loader)
                speeds[count].append(read / (time.perf_counter() - begun))
                bar.tick(f"{count} workers")
    return [median(speeds[count]) for count in counts]


def speed_of_ranks(counts: Sequence[int], threads: int, rounds: int, bar: Bar) -> list[float]:
    """Training images per second by so many ranks, at the same total threads and batch."""
    speeds: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            speeds[count].append(_train(count, max(1, threads // count)))
            bar.tick(f"{count} ranks")
    return [median(speeds[count]) for count in counts]


def _train(ranks: int, threads: int) -> float:
    """Images per second of a short run, without its first log line."""
    flags = [word for pair in TRAINING.items() for word in pair]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["pretrain", "scenes", "--out", str(out), *flags, "--devices", str(ranks)]
        done = subprocess.run(
            [sys.executable, "-m", "lewel", *words],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise RunError(f"A run on {ranks} ranks failed: {' '.join(last)}")
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    paces = [line["images_per_s"] for line in lines if "images_per_s" in line]
    return float(median(paces[1:]))
