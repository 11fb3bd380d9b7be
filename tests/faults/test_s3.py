"""Packed data in S3, by moto's server: read as from a folder, also through an outage."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lewel.cli.main import run
from lewel.data.pack.storage import Storage
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Source
from lewel.errors import UserError
from tests.data.pack.photos import make_packed, make_photos, pack
from tests.faults.storage import impatient

moto = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")

BUCKET = "bucket"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_packed(tmp_path_factory.mktemp("s3"), train=90, val=6, shard_images=40)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A place of its own: the cache of a node knows blocks by their URL."""
    return f"s3://{BUCKET}/{tmp_path.name}/shards"


@pytest.fixture
def server(packed: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """moto's server with the pack in a bucket; another one in this process holds the same."""
    started = moto.ThreadedMotoServer(port=0)
    started.start()
    host, port = started.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.makedirs(BUCKET, exist_ok=True)
    for path in packed.glob("*-*"):
        files.put(str(path), f"{url}/{path.name}")
    yield started
    started.stop()
    s3fs.S3FileSystem.clear_instance_cache()


def opened(place: str) -> Source:
    return open_data(place, image_size=16, storage=Storage(timeout=2.0)).unlabelled


def test_a_bucket_is_read_like_its_folder(packed: Path, url: str, server: Any) -> None:
    remote, local = opened(url), opened(str(packed))
    assert remote.name == "shards" and remote.classes == local.classes
    for index in range(len(local)):
        assert torch.equal(remote.read(index), local.read(index))
        assert remote.describe(index) == local.describe(index)
    with pytest.raises(UserError, match="has no index of packed data"):
        opened(f"s3://{BUCKET}/nothing")


def test_a_missing_shard_is_corrupt_and_an_outage_is_waited_for(
    packed: Path, url: str, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    remote, local = opened(url), opened(str(packed))
    s3fs.S3FileSystem().rm(f"{url}/train-000001.tar")
    with pytest.raises(UnreadableImage, match=r"train-000001.tar cannot be read"):
        remote.read(50)
    _, port = server.get_host_and_port()
    server.stop()

    def back() -> None:
        time.sleep(1.0)
        again = moto.ThreadedMotoServer(port=port)
        again.start()
        monkeypatch.setattr(server, "stop", again.stop)

    thread = threading.Thread(target=back)
    thread.start()
    assert torch.equal(remote.read(0), local.read(0))
    thread.join()


def test_a_bucket_is_packed_into_a_bucket(
    url: str, server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = make_photos(tmp_path / "photos", train=20, val=6, side=20)
    files, flags = s3fs.S3FileSystem(), ("--keep", "--shard-images", "8", "--workers", "0")
    for path in photos.rglob("*.*"):
        files.put_file(str(path), f"{url}-raw/photos/{path.relative_to(photos)}")
    assert pack(photos, tmp_path / "local", *flags) == 0
    target = f"{url}-packed"
    assert run(["pack", f"{url}-raw/photos", target, *flags]) == 0
    for path in tmp_path.glob("local/*.tar"):
        assert files.cat_file(f"{target}/{path.name}") == path.read_bytes()
    index = files.cat_file(f"{target}/lewel-index.json")
    assert index == (tmp_path / "local" / "lewel-index.json").read_bytes()
    assert run(["pack", f"{url}-raw/photos", target, *flags]) == 0
    assert run(["pack", "--check", target]) == 0
    assert run(["pack", str(photos), "s3://no-such-bucket/x", *flags]) == 2
    said = capsys.readouterr()
    assert "s3://no-such-bucket/x cannot be written" in said.err
    assert "testing" not in said.out + said.err
