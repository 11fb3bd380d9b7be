"""Start of a pack of many images: seconds, memory and bytes read, with an index that is made up.

`python -m tests.data.pack.size 10000000` writes an index of so many images without shards (about
60 bytes an image) to a temporary folder, and opens it from there and from a server, each in a
process of its own: labels, blocks, the order of an epoch, and the tables of the first four steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lewel.data.pack.format import INDEX, Shard, Written, index_text
from lewel.data.pack.tables import TABLES, TableWriter
from tests.faults.storage import Faults, served

SHARD = 8192
BATCH = 512
CLASSES = 1000


def make_index(folder: Path, images: int) -> None:
    """An index whose images have 40,000 bytes each."""
    shards, tables = [], []
    with (folder / TABLES).open("wb") as file:
        writer = TableWriter(file)
        for number, start in enumerate(range(0, images, SHARD)):
            count = min(SHARD, images - start)
            record = {
                "offsets": np.arange(count) * 41_472 + 512,
                "sizes": np.full(count, 40_000),
                "checksums": np.zeros(count, np.uint32),
                "names": [
                    f"train/n{i % CLASSES:08d}/image_{i:08d}.jpg"
                    for i in range(start, start + count)
                ],
            }
            shards.append(Shard(f"train-{number:06d}.tar", count * 41_472, f"{number:064x}", count))
            tables.append(writer.shard(record))
        labels = writer.section((np.arange(images) % CLASSES).tobytes())
    classes = tuple(f"n{i:08d}" for i in range(CLASSES))
    text = index_text("many", classes, {"train": Written(shards, tables, labels)})
    (folder / INDEX).write_text(text)


def open_and_measure(place: str) -> dict[str, float]:
    """What a rank does before its first step, after the imports."""
    from lewel.data.pack.format import read_index
    from lewel.data.pack.storage import DEFAULT_STORAGE
    from lewel.data.pack.stores import open_store
    from lewel.data.sources.packed import Packed
    from lewel.data.views.loader import Order

    before, began = memory(), time.monotonic()
    store = open_store(place, DEFAULT_STORAGE)
    index = read_index(store, place)
    source = Packed(
        store, index.shards["train"], index.tables["train"], name="x", labels=index.labels["train"]
    )
    order = Order(len(source), BATCH, 0, blocks=source.blocks)
    steps = [keys for _, keys in zip(range(4), order.keys(0, 4), strict=False)]
    needed = {source._place(index)[0] for keys in steps for _, index in keys}
    source._tables.prefetch(needed)
    for shard in needed:
        source._tables.of(shard)
    took = time.monotonic() - began
    return {"seconds": round(took, 2), "private MB": memory("peak") - before, "shards": len(needed)}


def memory(kind: str = "now") -> float:
    """Resident megabytes of this process that no file backs; or the most that it ever had."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    name = {"now": "RssAnon", "peak": "VmHWM"}[kind]
    files = 0 if kind == "now" else sum(int(fields[k].split()[0]) for k in ("RssFile", "RssShmem"))
    return round((int(fields[name].split()[0]) - files) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=int)
    parser.add_argument("--open", default="")
    options = parser.parse_args()
    if options.open:
        print(json.dumps(open_and_measure(options.open)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_index(folder, options.images)
        faults = Faults(latency=0.05)
        print(f"{options.images:,} images, index {(folder / TABLES).stat().st_size / 1e6:,.0f} MB")
        with served(folder, faults) as url:
            for place in (name, url):
                words = [sys.executable, "-m", "tests.data.pack.size", "1", "--open", place]
                print(place.partition(":")[0], subprocess.check_output(words, text=True).strip())
        print(
            f"fetched {sum(faults.sent.values()) / 1e6:,.1f} MB in {len(faults.requests)} requests"
        )


if __name__ == "__main__":
    main()
