"""The cache of a node: each block is fetched once, within its size, whatever is killed."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lewel.cli.main import run
from lewel.data.pack import cache as caching
from lewel.data.pack.cache import Cache, Key
from lewel.data.pack.storage import Storage
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Source, blocks_of
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import Order, TwoViews, make_loader
from tests.data.pack.photos import make_photos, pack
from tests.faults.storage import Faults, served
from tests.running import tiny_command

IMAGES = 600


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cached")
    photos = make_photos(folder / "photos", train=IMAGES, val=3, side=20)
    assert pack(photos, folder / "shards", "--keep", "--shard-images", "100") == 0
    return folder / "shards"


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def url(packed: Path, faults: Faults) -> Iterator[str]:
    with served(packed, faults) as place:
        yield place


def opened(place: str, folder: Path | None, size: int = 10**9) -> Source:
    storage = Storage(1.0, None if folder is None else str(folder), size)
    return open_data(place, image_size=16, storage=storage).unlabelled


def epoch(
    place: str, folder: Path | None, workers: int, rank: int = 0, ranks: int = 1, batch: int = 64
) -> None:
    """Read all batches of an epoch, as a rank does."""
    source = opened(place, folder)
    order = Order(len(source), batch, 3, 1, rank, ranks, blocks_of(source))
    views = TwoViews(source, [ViewRecipe()], 16, 3)
    for batch in make_loader(views, order, 0, order.steps_per_epoch, workers, False):
        assert not batch.corrupt


def in_processes(work: Callable[..., None], *calls: tuple[object, ...]) -> None:
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=work, args=call) for call in calls]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0


def fetched(faults: Faults, packed: Path) -> float:
    """Bytes that were sent over the bytes of the training images' shards."""
    total = sum(path.stat().st_size for path in packed.glob("train-*.tar"))
    return sum(n for name, n in faults.sent.items() if name.startswith("train")) / total


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("memory", [True, False])
def test_a_node_fetches_each_block_once(
    packed: Path, tmp_path: Path, faults: Faults, url: str, ranks: int, memory: bool
) -> None:
    folder = None if memory else tmp_path / "cache"
    faults.latency = 0.02
    # A rank's 16 images of a step are half a lane: two ranks need each block.
    in_processes(epoch, *((url, folder, 4, rank, ranks, 16 * ranks) for rank in range(ranks)))
    assert 0.8 < fetched(faults, packed) <= 1.01
    if not memory:
        faults.sent.clear()
        epoch(url, folder, 0)
        assert fetched(faults, packed) == 0  # a second run, or the next epoch


def read_all(place: str, expected: str, folder: Path, size: int, seed: int) -> None:
    """Read all images in a random order, and compare them."""
    source, local = opened(place, folder, size), opened(expected, None)
    for index in random.Random(seed).sample(range(IMAGES), IMAGES):
        assert torch.equal(source.read(index), local.read(index))


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("blocks/*/*"))


def test_two_runs_at_once_share_a_cache_that_is_too_small(
    packed: Path, tmp_path: Path, url: str
) -> None:
    size = 10**6  # of 2.3 MB
    calls = [(url, str(packed), tmp_path, size, seed) for seed in range(3)]
    in_processes(read_all, *calls)
    assert 0.5 * size < bytes_in(tmp_path) <= size


def test_a_killed_process_leaves_a_cache_that_works(
    packed: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, size = multiprocessing.get_context("fork"), 10**6
    for attempt in range(8):
        process = context.Process(target=read_all, args=(url, str(packed), tmp_path, size, attempt))
        process.start()
        while not list(tmp_path.rglob("blocks/*/*")):
            time.sleep(0.005)
        time.sleep(0.02 * attempt)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    (tmp_path / "lewel-cache" / "bytes").write_bytes(b"cut")
    folder = next((tmp_path / "lewel-cache" / "blocks").iterdir())
    (folder / "x.lewel-partial").write_bytes(b"left by a kill")
    monkeypatch.setattr(caching, "STALE", -1.0)
    read_all(url, str(packed), tmp_path, size, 1)
    assert bytes_in(tmp_path) <= size and not list(tmp_path.rglob("*.lewel-partial"))


def test_damaged_blocks_are_fetched_again(packed: Path, tmp_path: Path, url: str) -> None:
    read_all(url, str(packed), tmp_path, 10**9, 0)
    blocks = list(tmp_path.rglob("blocks/*/*-*"))
    for number, path in enumerate(blocks):
        data = bytearray(path.read_bytes())
        data[:] = data[: len(data) // 2] if number % 2 else bytes(len(data))
        path.write_bytes(data)
    read_all(url, str(packed), tmp_path, 10**9, 0)
    assert list(tmp_path.rglob("blocks/*/*-*")) == blocks


def test_blocks_are_evicted_by_their_last_use(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 1000)
    keys = [
        Key("s3://bucket", "train-000000.tar", start, start + 100) for start in range(0, 1500, 100)
    ]
    for key in keys[:9]:
        cache.fill(key, lambda: bytes(100))
        time.sleep(0.01)
    assert cache.read(keys[0], 0, 100) is not None  # used again
    time.sleep(0.01)
    for key in keys[9:12]:
        cache.fill(key, lambda: bytes(100))
    assert [cache.holds(key) for key in keys[:4]] == [True, False, False, True]
    assert all(map(cache.holds, keys[3:12]))


def test_a_full_disk_does_not_stop_a_run(
    packed: Path, tmp_path: Path, faults: Faults, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lewel.data.pack.cache.tempfile.mkstemp", full)
    source = opened(url, tmp_path)
    for index in range(100):
        source.read(index)
    assert len([line for line in faults.requests if line.startswith("train-000000")]) == 4


def test_memory_is_left_alone_where_there_is_little(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "_memory", None)
    monkeypatch.setattr(caching, "MEMORY", str(tmp_path))
    monkeypatch.setattr(caching, "LEAST_MEMORY", 1 << 60)
    source = opened(url, None)
    assert torch.equal(source.read(3), source.read(3))
    assert not list(tmp_path.rglob("blocks/*"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--cache", "/proc/nowhere"), "--cache /proc/nowhere cannot be used"),
        (("--cache", "{file}"), "cannot be used (not a directory)"),
        (("--cache-size", "200 apples"), "'200 apples' is no size of a cache"),
        (("--cache-size", "1kB"), "expected 1MB or more"),
        (("--storage-timeout", "0"), "change it with --storage-timeout"),
    ],
)
def test_a_wrong_cache_is_one_message(
    url: str,
    tmp_path: Path,
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("x")
    words = [word.format(file=tmp_path / "file") for word in flags]
    assert run(tiny_command(tmp_path / "run", *words, data=url)) == 2
    assert message in capsys.readouterr().err


def test_the_cache_in_memory_ends_with_its_last_process(tmp_path: Path) -> None:
    code = (
        "import sys; from lewel.data.pack import cache; cache.MEMORY = sys.argv[1]; "
        "cache.open_cache(None, 0); print('open', flush=True); sys.stdin.read()"
    )

    def start() -> "subprocess.Popen[str]":
        words = [sys.executable, "-c", code, str(tmp_path)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        return process

    first, second = start(), start()
    second.communicate()
    assert list(tmp_path.iterdir())
    killed = start()
    killed.kill()
    killed.communicate()
    first.communicate()
    assert not list(tmp_path.iterdir())
