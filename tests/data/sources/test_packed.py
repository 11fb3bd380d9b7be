"""Packed data is read like its source folder, from a disk and from URLs."""

import functools
import hashlib
import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

from lewel.data.pack import remote
from lewel.data.pack.format import INDEX, SAMPLES
from lewel.data.pack.storage import Storage
from lewel.data.pack.tables import TABLES
from lewel.data.sources.images import UnreadableImage, read_image
from lewel.data.sources.open import open_data
from lewel.data.sources.packed import Packed
from lewel.data.sources.source import Data, Source, Subset, blocks_of, digest
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import Order, TwoViews, make_loader
from lewel.errors import StorageError, UserError
from tests.data.pack.photos import CLASSES, make_photos, pack
from tests.data.pack.version_1 import Arrays, as_version_1, write_samples
from tests.faults.storage import Faults, served, without_cache


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("data") / "photos", train=90, val=9)


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "shards"
    assert pack(photos, out, "--keep", "--shard-images", "50") == 0
    return out


@pytest.fixture
def mine(packed: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(packed, tmp_path / "shards"))


def opened(place: Path | str) -> Data:
    return open_data(str(place), image_size=16)


def views(source: Source, workers: int = 0, first: int = 0, last: int = 6) -> list[torch.Tensor]:
    """The first view's pixels of each step."""
    order = Order(len(source), 16, 3, blocks=blocks_of(source))
    loader = make_loader(
        TwoViews(source, [ViewRecipe()], 16, 3), order, first, last, workers, False
    )
    return [batch.pixels[0] for batch in loader]


def test_packed_data_equals_its_folder(photos: Path, packed: Path) -> None:
    before, after = opened(photos), opened(packed)
    for raw, source in ((before.train, after.train), (before.val, after.val)):
        assert raw is not None and source is not None
        assert source.classes == CLASSES and source.name == "shards"
        assert raw.labels is not None and source.labels is not None
        names = [source.describe(i) for i in range(len(source))]
        assert sorted(names) == sorted(raw.describe(i) for i in range(len(raw)))
        for index, name in enumerate(names):
            assert CLASSES[source.labels[index]] == name.split("/")[1]
            assert torch.equal(source.read(index), read_image(photos / name))
    assert after.train is not None
    order = [after.train.describe(i) for i in range(90)]
    assert order != sorted(order)  # classes are mixed
    with pytest.raises(IndexError):
        after.train.read(90)


def test_the_digest_depends_on_the_shards(packed: Path, photos: Path, tmp_path: Path) -> None:
    source = opened(packed).unlabelled
    other = tmp_path / "moved"
    shutil.copytree(packed, other)
    assert digest(opened(other).unlabelled) == digest(source)
    assert pack(photos, tmp_path / "another", "--keep", "--seed", "1") == 0
    assert digest(opened(tmp_path / "another").unlabelled) != digest(source)
    few, same, others = Subset(source, [1, 2]), Subset(source, [1, 2]), Subset(source, [1, 3])
    assert digest(few) == digest(same) != digest(others)
    assert digest(Subset(few, [0])) != digest(few)


def test_blocks_follow_the_shards_and_their_subsets(packed: Path) -> None:
    blocks = blocks_of(opened(packed).unlabelled)
    assert blocks is not None
    assert blocks.tolist() == [0] * 32 + [1] * 18 + [2] * 32 + [3] * 8  # shards of 50 and 40
    limited = open_data(str(packed), image_size=16, limit=20).unlabelled
    assert isinstance(limited, Subset)
    assert np.array_equal(blocks_of(limited), blocks[limited.indices])


def test_batches_are_the_same_from_any_place_and_with_any_workers(packed: Path) -> None:
    expected = views(opened(packed).unlabelled)
    assert len(torch.cat(expected).flatten(1).unique(dim=0)) > 80
    files = fsspec.filesystem("memory")
    files.put(str(packed), "/bucket/shards", recursive=True)
    try:
        for place in ("memory://bucket/shards", packed.as_uri()):
            source = opened(place).unlabelled
            assert source.name == "shards"
            for one, other in zip(expected, views(source), strict=True):
                assert torch.equal(one, other)
    finally:
        files.rm("/bucket", recursive=True)
    source = opened(packed).unlabelled
    for one, other in zip(expected, views(source, workers=2), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(expected[4:], views(source, first=4), strict=True):
        assert torch.equal(one, other)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A file server with range requests, as object stores have."""

    requests: list[str] = []  # noqa: RUF012 (one for the class on purpose)
    fails = fails_all = False

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if self.fails_all or (self.fails and path.suffix == ".tar"):
            self.send_error(503)
            return
        wanted = self.headers.get("Range")
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        if path.suffix == ".tar":
            self.requests.append(f"{path.name} {wanted}")
        start, end = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        data = path.read_bytes()[start : end + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(packed: Path) -> Iterator[str]:
    Ranges.requests, Ranges.fails, Ranges.fails_all = [], False, False
    handler = functools.partial(Ranges, directory=str(packed.parent))
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}/shards"
    served.shutdown()
    served.server_close()


def test_a_block_is_one_request(packed: Path, server: str) -> None:
    source, local = opened(server).unlabelled, opened(packed).unlabelled
    for index in np.random.default_rng(0).permutation(90).tolist():
        assert torch.equal(source.read(index), local.read(index))
    assert len(Ranges.requests) == len(set(Ranges.requests)) == 4
    expected = views(local)
    for one, other in zip(expected, views(source, workers=2), strict=True):  # after a fork
        assert torch.equal(one, other)


def test_the_cache_of_blocks_is_limited(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cache(monkeypatch)
    source = opened(server).unlabelled
    for index in (0, 1, 40, 0):
        source.read(index)
    assert len(Ranges.requests) == 3


def test_a_request_that_fails_is_repeated_and_reported(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lewel.data.pack.patience.FIRST_WAIT", 0.01)
    storage = Storage(timeout=0.002)
    source = open_data(server, image_size=16, storage=storage).unlabelled
    Ranges.fails = True
    for index in (0, 1):
        with pytest.raises(StorageError, match=r"http.*0.002 minutes \(HTTP status 503\)"):
            source.read(index)
    Ranges.fails_all = True
    with pytest.raises(StorageError, match=r"http.*0.002 minutes \(HTTP status 503\)"):
        open_data(server, image_size=16, storage=storage)


def test_a_missing_package_or_protocol_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="is not supported by fsspec"):
        opened("nonsense://bucket/shards")
    with pytest.raises(UserError, match="has no index of packed data"):
        opened("memory://bucket/nothing")
    monkeypatch.setattr(remote, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'lewel\[remote\]'"):
        opened("s3://bucket/shards")


def corrupt_of(source: Source) -> dict[int, str]:
    """The reason for each image that cannot be read."""
    reasons = {}
    for index in range(len(source)):
        try:
            source.read(index)
        except UnreadableImage as error:
            reasons[index] = str(error)
    return reasons


def test_a_flipped_bit_is_one_corrupt_image_of_a_named_shard(mine: Path) -> None:
    source = opened(mine).unlabelled
    assert isinstance(source, Packed)
    shard = mine / "train-000001.tar"
    data = bytearray(shard.read_bytes())
    start, end = source._tables.of(1).span(60 - 50)
    data[(start + end) // 2] ^= 1
    shard.write_bytes(data)
    assert corrupt_of(opened(mine).unlabelled) == {60: "train-000001.tar is damaged"}


def test_a_truncated_shard_is_reported_and_its_missing_images_are_corrupt(mine: Path) -> None:
    source = opened(mine).unlabelled
    assert isinstance(source, Packed)
    shard = mine / "train-000000.tar"
    shard.write_bytes(shard.read_bytes()[: source._tables.of(0).span(30)[0]])
    again = opened(mine)
    assert any("train-000000.tar has" in note for note in again.notes)
    assert corrupt_of(again.unlabelled) == dict.fromkeys(
        range(30, 50), "train-000000.tar is truncated"
    )


def test_a_missing_shard_is_named(mine: Path) -> None:
    source = opened(mine).unlabelled
    (mine / "train-000001.tar").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of its 3 shards \(train-000001.tar\)"):
        opened(mine)
    reasons = corrupt_of(source)
    assert sorted(reasons) == list(range(50, 90))
    assert set(reasons.values()) == {"train-000001.tar cannot be read (No such file or directory)"}


def test_an_invalid_index_is_one_message(mine: Path) -> None:
    path = mine / INDEX
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "version": 3}))
    with pytest.raises(UserError, match="packed by a newer lewel"):
        opened(mine)
    start, end, _ = about["labels"]["train"]
    labels = {**about["labels"], "train": [start, end, "0"]}
    path.write_text(json.dumps({**about, "labels": labels}))
    with pytest.raises(UserError, match=r"lewel-samples.bin is damaged"):
        opened(mine)
    path.write_text("{")
    with pytest.raises(UserError, match=r"lewel-index.json is damaged"):
        opened(mine)
    path.unlink()
    with pytest.raises(UserError, match="run the same `lewel pack` command again"):
        opened(mine)


def index_with(folder: Path, **changes: object) -> None:
    about = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**about, **changes}))


def test_an_index_needs_shards_of_the_right_kind(mine: Path) -> None:
    shards = json.loads((mine / INDEX).read_text())["shards"]
    sizes = [{**one, "bytes": "many"} for one in shards["train"]]
    for wrong in ({}, {**shards, "train": []}, [], {**shards, "train": sizes}):
        index_with(mine, shards=wrong)
        with pytest.raises(UserError, match=r"lewel-index.json is damaged"):
            opened(mine)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("labels", lambda labels: labels - 1),
        ("labels", lambda labels: labels + len(CLASSES)),
        ("labels", lambda labels: labels + 0.5),
        ("labels", lambda labels: labels[:3]),
        ("sizes", lambda sizes: sizes + 2**40),
        ("offsets", lambda offsets: -1 - offsets),
        ("checksums", lambda sums: sums[:, None]),
    ],
)
def test_the_tables_of_a_pack_must_agree(
    mine: Path, table: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    with np.load(as_version_1(mine) / SAMPLES) as stored:
        arrays: Arrays = dict(stored)
    opened(mine)
    arrays[f"train/{table}"] = change(arrays[f"train/{table}"])
    write_samples(mine, arrays)
    with pytest.raises(UserError, match=r"lewel-index.json is damaged"):
        opened(mine)


def test_packs_of_version_1_are_read_alike(mine: Path, packed: Path) -> None:
    old, new = opened(as_version_1(mine)), opened(packed)
    for one, other in ((old.train, new.train), (old.val, new.val)):
        assert one is not None and other is not None
        assert one.labels is not None and other.labels is not None
        assert np.array_equal(one.labels, other.labels) and digest(one) == digest(other)
        assert np.array_equal(blocks_of(one), blocks_of(other))
        for index in range(len(one)):
            assert one.describe(index) == other.describe(index)
            assert torch.equal(one.read(index), other.read(index))
    (mine / SAMPLES).write_bytes((mine / SAMPLES).read_bytes()[:-1])
    with pytest.raises(UserError, match=r"lewel-samples.npz is damaged"):
        opened(mine)


def with_table(folder: Path, shard: int, table: bytes) -> None:
    """Replace a table of the training shards, with the right checksum in the index."""
    about = json.loads((folder / INDEX).read_text())
    content = (folder / TABLES).read_bytes()
    section = [len(content), len(content) + len(table), hashlib.sha256(table).hexdigest()]
    about["shards"]["train"][shard]["table"] = section
    (folder / TABLES).write_bytes(content + table)
    (folder / INDEX).write_text(json.dumps(about))


@pytest.mark.parametrize("change", ["offsets", "sizes", "short"])
def test_a_table_that_is_wrong_makes_the_images_of_its_shard_corrupt(
    mine: Path, change: str
) -> None:
    count = 50
    offsets, numbers = np.full(count, 512, np.int64), np.full(2 * count, 10, np.uint32)
    if change == "offsets":
        offsets[3] = -1
    if change == "sizes":
        numbers[3] = 2**31
    table = offsets.tobytes() + numbers.tobytes()
    with_table(mine, 0, table[:-4] if change == "short" else table)
    reasons = corrupt_of(opened(mine).unlabelled)
    assert sorted(reasons) == list(range(50))
    assert all("train-000000.tar cannot be read (its part of" in why for why in reasons.values())


def test_a_table_that_is_damaged_once_is_fetched_again(packed: Path) -> None:
    faults = Faults(only=TABLES, flipped=1)
    with served(packed, faults) as place:
        source = opened(place).unlabelled  # reads the labels
        assert faults.flipped == 0
        faults.flipped = 1
        assert source.read(3).shape[0] == 3 and faults.flipped == 0
        faults.flipped = 2
        with pytest.raises(UnreadableImage, match=r"its part of lewel-samples.bin is damaged"):
            source.read(60)


def test_a_cache_for_local_data_is_noted(packed: Path, tmp_path: Path) -> None:
    found = open_data(str(packed), image_size=16, storage=Storage(cache=str(tmp_path / "cache")))
    assert f"--cache has no effect: {packed} is on this machine, not at a URL." in found.notes
    assert not any("--cache" in note for note in open_data(str(packed), image_size=16).notes)
