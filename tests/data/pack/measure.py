"""The table of "Data on object storage": bytes fetched over needed, images/s and data wait.

`python -m tests.data.pack.measure` packs made-up photographs, serves them with 50 ms latency, and
lets each combination of workers, ranks and cache read two epochs beside a step of fixed length.
With `--s3` moto's server is read as well, without latency of its own, by two workers.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    fetched = count_fetched()
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
    print(json.dumps({"images": images / took, "wait": waited / took, "bytes": fetched.value}))


def count_fetched() -> Any:
    """A number of the bytes that this process and its workers fetch from shards."""
    from lewel.data.pack.remote import Remote
    from lewel.data.pack.stores import Extent

    fetched, fetch = multiprocessing.Value("q", 0), Remote.read_range

    def counting(self: Remote, block: Extent) -> bytes:
        data = fetch(self, block)
        with fetched.get_lock():
            fetched.value += len(data) * block.file.endswith(".tar")
        return data

    Remote.read_range = counting  # type: ignore[method-assign]
    return fetched


def combination(place: str, cache: str, workers: int, ranks: int, total: int) -> list[str]:
    """The row of a table: for each of two epochs its three numbers."""
    cells = []
    for epoch in range(2):

        def start(rank: int, epoch: int = epoch) -> str:
            words = [place, cache, *map(str, (workers, rank, ranks, epoch))]
            command = [sys.executable, "-m", "tests.data.pack.measure", "--read", *words]
            return subprocess.check_output(command, text=True)

        with ThreadPoolExecutor(ranks) as threads:
            found = [json.loads(text) for text in threads.map(start, range(ranks))]
        fetched = sum(one["bytes"] for one in found) / total
        images = sum(one["images"] for one in found)
        wait = max(one["wait"] for one in found)
        cells += [f"{fetched:.2f}", f"{images:.0f}", f"{wait:.0%}"]
    return cells


@contextmanager
def http(folder: Path) -> Iterator[str]:
    """A folder by HTTP with 50 ms latency."""
    words = ["-m", "tests.faults.storage", str(folder), "--latency", "0.05"]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


@contextmanager
def s3(folder: Path) -> Iterator[str]:
    """A folder in a bucket of moto's server."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    os.environ |= {"AWS_ENDPOINT_URL": f"http://{host}:{port}", **dict.fromkeys(names, "testing")}
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    files = s3fs.S3FileSystem()
    files.makedirs("bucket")
    for path in folder.glob("*-*"):
        files.put_file(str(path), f"bucket/shards/{path.name}")
    yield "s3://bucket/shards"
    server.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", nargs=6)
    parser.add_argument("--s3", action="store_true")
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
        for kind, serve in {"HTTP": http, "S3": s3}.items():
            if kind == "S3" and not options.s3:
                continue
            every = [2] if options.s3 else [0, 2, 4, 8]
            with serve(folder / "shards") as place:
                for cached, ranks, workers in itertools.product((False, True), (1, 2), every):
                    shutil.rmtree(folder / "cache", ignore_errors=True)
                    cache = str(folder / "cache") if cached else ""
                    cells = combination(place, cache, workers, ranks, total)
                    start = [kind, "disk" if cached else "memory", str(ranks), str(workers)]
                    print("| " + " | ".join([*start, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
