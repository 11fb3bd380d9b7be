"""The table of "Data on object storage": bytes fetched over needed, images/s and data wait.

`python -m tests.data.pack.measure` packs made-up photographs, serves them with 50 ms latency, and
lets each combination of workers, ranks and cache read two epochs beside a step of fixed length.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.data.pack.photos import make_photos, pack

IMAGES, SIDE, BATCH, STEP = 4096, 96, 64, 0.15  # STEP: seconds that a step of training takes
MEMORY_BYTES = 12 * 10**6  # a third of the data, as for data that does not fit in memory


def read(place: str, cache: str, workers: int, rank: int, ranks: int, epoch: int) -> None:
    """Read the batches of an epoch, with a pause for each step -> images/s, data wait."""
    from lewel.data.pack import cache as caching
    from lewel.data.pack.storage import Storage
    from lewel.data.sources.open import open_data
    from lewel.data.sources.source import blocks_of
    from lewel.data.views.crop import ViewRecipe
    from lewel.data.views.loader import Order, TwoViews, make_loader
    from lewel.train.feed import Feed

    caching.MEMORY_BYTES = MEMORY_BYTES  # type: ignore[misc]
    source = open_data(place, image_size=32, storage=Storage(cache=cache or None)).unlabelled
    order = Order(len(source), BATCH, 0, 1, rank, ranks, blocks_of(source))
    first, last = (number * order.steps_per_epoch for number in (epoch, epoch + 1))
    views = TwoViews(source, [ViewRecipe()] * 2, 32, 0)
    feed = Feed(make_loader(views, order, first, last, workers, False), 2)
    batches = iter(feed)
    next(batches)  # workers have started
    began, waited, images = time.monotonic(), 0.0, 0
    for _ in range(last - first - 1):
        before = time.monotonic()
        batch = next(batches)
        waited += time.monotonic() - before
        images += len(batch.indices)
        assert not batch.corrupt
        time.sleep(STEP)
    took = time.monotonic() - began
    feed.close()
    print(json.dumps({"images": images / took, "wait": waited / took}))


def combination(place: str, cache: str, workers: int, ranks: int, total: int) -> list[str]:
    """The row of a table: for each of two epochs its three numbers."""
    cells = []
    for epoch in range(2):
        counts(place)

        def start(rank: int, epoch: int = epoch) -> str:
            words = [place, cache, *map(str, (workers, rank, ranks, epoch))]
            command = [sys.executable, "-m", "tests.data.pack.measure", "--read", *words]
            return subprocess.check_output(command, text=True)

        with ThreadPoolExecutor(ranks) as threads:
            found = [json.loads(text) for text in threads.map(start, range(ranks))]
        fetched = counts(place)["bytes"] / total
        images = sum(one["images"] for one in found)
        wait = max(one["wait"] for one in found)
        cells += [f"{fetched:.2f}", f"{images:.0f}", f"{wait:.0%}"]
    return cells


def counts(place: str) -> dict[str, int]:
    """What the server has sent since the last call."""
    with urllib.request.urlopen(f"{place}/-/counts") as answer:
        found: dict[str, int] = json.load(answer)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", nargs=6)
    options = parser.parse_args()
    if options.read:
        place, cache, *numbers = options.read
        read(place, cache, *map(int, numbers))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = make_photos(folder / "photos", train=IMAGES, val=3, side=SIDE)
        assert pack(photos, folder / "shards", "--keep", "--shard-images", "512") == 0
        total = sum(path.stat().st_size for path in (folder / "shards").glob("train-*.tar"))
        words = ["-m", "tests.faults.storage", str(folder / "shards"), "--latency", "0.05"]
        with subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            place = server.stdout.readline().strip()
            for cached in (False, True):
                for ranks in (1, 2):
                    for workers in (0, 2, 4, 8):
                        shutil.rmtree(folder / "cache", ignore_errors=True)
                        cache = str(folder / "cache") if cached else ""
                        cells = combination(place, cache, workers, ranks, total)
                        start = ["disk" if cached else "memory", str(ranks), str(workers)]
                        print("| " + " | ".join([*start, *cells]) + " |", flush=True)
            server.terminate()


if __name__ == "__main__":
    main()
