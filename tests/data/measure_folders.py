"""Memory and start times of large folders: `python -m tests.data.measure_folders 0.3 1.28 10 14`.

Numbers are millions of images. Up to half a million are real files, made in a temporary folder and
deleted; more are a faked walk: os.scandir and os.stat of the scan give 641 images to a folder, as
in ImageNet-22k. One process scans and writes the list, then another one opens it. Memory is the
peak
above that of the imports.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lewel.data.sources import scan
from lewel.data.sources.file_list import Lists
from lewel.data.sources.open import open_data
from lewel.data.sources.source import digest
from lewel.data.views.loader import Order

PER_FOLDER = 641
REAL = 500_000  # images, up to which files are made


class Entry:
    """What os.scandir gives, of a file or a folder that does not exist."""

    __slots__ = ("folder", "name")

    def __init__(self, name: str, folder: bool) -> None:
        self.name, self.folder = name, folder

    def is_dir(self) -> bool:
        return self.folder

    def is_file(self) -> bool:
        return not self.folder

    def is_symlink(self) -> bool:
        return False


def folder_name(number: int) -> str:
    return f"n{number:08d}"


def image_names(folder: str, count: int) -> list[str]:
    return [f"{folder}_{number}.JPEG" for number in range(count)]


def counts(images: int) -> list[int]:
    """How many images each folder has."""
    return [min(PER_FOLDER, images - start) for start in range(0, images, PER_FOLDER)]


def fake(root: str, images: int) -> None:
    """Let the scan see folders that do not exist."""
    sizes = counts(images)
    real_scandir, real_stat = os.scandir, os.stat

    @contextmanager
    def scandir(path: str) -> Iterator[Any]:
        if path.rstrip("/") == root:
            yield (Entry(folder_name(number), True) for number in range(len(sizes)))
        elif path.startswith(root):
            name = os.path.basename(path)
            yield (Entry(one, False) for one in image_names(name, sizes[int(name[1:])]))
        else:
            with real_scandir(path) as found:
                yield found

    def stat(path: Any, **given: Any) -> Any:
        if not str(path).startswith(root + "/n"):
            return real_stat(path, **given)
        number = int(os.path.basename(path)[1:])
        return SimpleNamespace(st_dev=-1, st_ino=number, st_mtime_ns=number)

    more = {name: getattr(os, name) for name in ("path", "fsencode", "fsdecode", "DirEntry")}
    scan.os = SimpleNamespace(scandir=scandir, stat=stat, **more)  # type: ignore[attr-defined]


def make(root: Path, images: int) -> None:
    """Empty files."""
    for number, count in enumerate(counts(images)):
        folder = root / folder_name(number)
        folder.mkdir(parents=True)
        for name in image_names(folder.name, count):
            os.close(os.open(folder / name, os.O_CREAT))
        os.utime(folder, (0, 0))
    os.utime(root, (0, 0))


def peak() -> float:
    """The most memory that this process has had, MB; mapped files that were read count, too."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) / 1000


def start(root: str, runs: str, images: int) -> None:
    """One process's start of a run: data, digest, and the order of the first epoch."""
    if images > REAL:
        fake(root, images)
    before, wall, cpu = peak(), time.monotonic(), time.process_time()
    data = open_data(root, image_size=224, lists=Lists.beside(Path(runs) / "one"))
    digest(data.unlabelled)
    order = Order(len(data.unlabelled), 256, seed=0).epoch(0)
    assert len(order) == images == len(data.unlabelled)
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    print(f"{wall:.1f} s ({cpu:.1f} s CPU), {peak() - before:,.0f} MB")


def measure(millions: str) -> None:
    """Start two processes, one after the other."""
    images = round(float(millions) * 1e6)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "photos"
        root.mkdir()
        os.utime(root, (0, 0))
        if images <= REAL:
            make(root, images)
        kind = "real files" if images <= REAL else "faked walk"
        command = [sys.executable, "-m", "tests.data.measure_folders", "start", str(root)]
        for who in ("scans", "opens the list"):
            words = [*command, str(Path(place) / "runs"), str(images)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            print(f"{images:,} ({kind}), {who}: {done.stdout.strip()}", flush=True)
        (file,) = Path(place).rglob("*.files")
        print(f"{images:,}: the list has {file.stat().st_size / 1e6:,.0f} MB", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        for millions in sys.argv[1:]:
            measure(millions)
