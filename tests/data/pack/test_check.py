"""Checksums detect damage; training and evaluation read packed data like any other data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lewel.cli.main import run
from lewel.data.sources.packed import Packed
from tests.data.pack.photos import make_photos, pack
from tests.faults.storage import Faults, served
from tests.running import metrics, tiny_run


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("data") / "photos", train=96, val=12, side=20)


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Path:
    assert pack(photos, tmp_path / "shards", "--keep", "--shard-images", "40") == 0
    return tmp_path / "shards"


def test_intact_data_passes(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pack", "--check", str(packed)]) == 0
    assert "is intact: 4 shards, 108 images" in capsys.readouterr().out
    assert run(["pack", "--check", packed.as_uri()]) == 0
    assert run(["pack", "--check", str(packed.parent)]) == 2
    assert "has no index of packed data" in capsys.readouterr().err


def test_damaged_shards_are_named(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flipped = packed / "train-000000.tar"
    data = bytearray(flipped.read_bytes())
    data[100] ^= 1  # in a header, where no image is
    flipped.write_bytes(data)
    cut = packed / "train-000002.tar"
    cut.write_bytes(cut.read_bytes()[:-1])
    (packed / "val-000000.tar").unlink()
    for place in (str(packed), packed.as_uri()):
        assert run(["pack", "--check", place]) == 1
        message = capsys.readouterr().err
        assert "3 of the 4 shards" in message and "train-000001" not in message
        assert "train-000000.tar has a wrong checksum" in message
        assert "train-000002.tar has " in message
        assert "val-000000.tar is missing" in message


def test_a_run_on_shards_resumes_exactly_from_a_folder_and_a_url(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        pass

    flags = ("--limit", "90", "--epochs", "1", "--seed", "2", "--checkpoint-minutes", "0.002")
    assert tiny_run(tmp_path / "complete", *flags, data=str(packed)) == 0
    real, reads = Packed.read, []

    def read(source: Packed, index: int) -> torch.Tensor:
        reads.append(index)
        if len(reads) == 60:  # the image of the views reads 8, then each step reads 8
            raise Cut
        return real(source, index)

    with monkeypatch.context() as patch:
        patch.setattr(Packed, "read", read)
        with pytest.raises(Cut):
            tiny_run(tmp_path / "url", *flags, data=packed.as_uri())
    assert 2 <= len(metrics(tmp_path / "url")) <= 8
    assert tiny_run(tmp_path / "url", *flags, data=packed.as_uri()) == 0
    complete, url = ([m.get("loss") for m in metrics(tmp_path / o)] for o in ("complete", "url"))
    assert complete == url and len(complete) == 12


def test_a_password_stays_in_the_settings_of_a_run(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with served(packed, Faults()) as url:
        place = url.replace("://", "://me:s3kr3t@")
        flags = ("--limit", "32", "--epochs", "1", "--loggers", "tensorboard")
        assert tiny_run(out, *flags, data=place) == 0
        words = ["knn", str(out), "--data", place, "--accelerator", "cpu", "--workers", "0"]
        assert run(words) == 0
        assert run(["segment", str(out), "--data", place]) == 2
        assert run(["report", str(out)]) == 0
        again = place.replace("s3kr3t", "changed")  # as presigned URLs do
        assert tiny_run(out, *flags, data=again) == 0
    said = capsys.readouterr()
    assert "s3kr3t" not in said.out + said.err
    files = [path for path in out.rglob("*") if path.is_file()]
    assert [path.name for path in files if "tfevents" in path.name]
    holding = [path for path in files if b"s3kr3t" in path.read_bytes()]
    # Resuming needs it; nobody else can read the file.
    assert [path.name for path in holding] == ["config.yaml"]
    assert holding[0].stat().st_mode & 0o777 == 0o600


def test_a_run_counts_the_samples_of_a_damaged_shard(packed: Path, tmp_path: Path) -> None:
    shard = packed / "train-000001.tar"
    shard.write_bytes(shard.read_bytes()[:-6000])
    assert tiny_run(tmp_path / "run", "--limit", "96", "--epochs", "1", data=str(packed)) == 0
    lines = (tmp_path / "run" / "corrupt_images.jsonl").read_text().splitlines()
    assert lines and all("train-000001.tar is truncated" in json.loads(x)["reason"] for x in lines)
    shard.write_bytes(b"")
    assert tiny_run(tmp_path / "worse", "--limit", "96", "--epochs", "1", data=str(packed)) == 1


def test_evaluation_on_shards_equals_evaluation_on_their_folder(
    photos: Path, packed: Path, tmp_path: Path
) -> None:
    assert tiny_run(tmp_path / "run", "--epochs", "1", data=str(packed)) == 0
    for data in (photos, packed):
        words = ["knn", str(tmp_path / "run"), "--data", str(data), "--accelerator", "cpu"]
        assert run([*words, "--workers", "0"]) == 0
    entries = json.loads((tmp_path / "run" / "results" / "knn.json").read_text())
    accuracies = [entry["result"]["top1"] for entry in entries]
    assert len(accuracies) == 2 and accuracies[0] == accuracies[1]


@pytest.mark.slow
def test_a_pack_of_ten_million_images_starts_quickly() -> None:
    """With an index that is made up; the shards are not read before the first step."""
    words = [sys.executable, "-m", "tests.data.pack.size", "10000000"]
    said = subprocess.check_output(words, text=True).splitlines()
    for line in said[1:3]:  # from a folder, from a server with 50 ms latency
        found = json.loads(line.partition(" ")[2])
        assert found["seconds"] < 5 and found["private MB"] < 300, line
