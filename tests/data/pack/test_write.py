"""Packing: tar files that other tools read, byte-identical also after interruptions."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from lewel import files
from lewel.cli.main import run
from lewel.data.pack import write as writing
from lewel.data.sources.images import read_image
from lewel.data.sources.open import open_data
from tests.data.pack.photos import CLASSES, make_photos, pack, smooth
from tests.data.pack.version_1 import as_version_1


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "shards"
    assert pack(photos, out, "--size", "24", "--shard-images", "8") == 0
    return out


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of all shards."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def test_tarfile_reads_the_shards(photos: Path, packed: Path) -> None:
    names = []
    for path in sorted(packed.glob("train-*.tar")):
        with tarfile.open(path) as tar:
            members = tar.getmembers()
            assert all((m.mtime, m.uid, m.gid, m.uname) == (0, 0, 0, "") for m in members)
            for image, label, about in zip(members[::3], members[1::3], members[2::3], strict=True):
                key = image.name.removesuffix(".jpg")
                assert (label.name, about.name) == (f"{key}.cls", f"{key}.json")
                record = json.load(tar.extractfile(about))
                names.append(record["name"])
                assert record["class"] == CLASSES[int(tar.extractfile(label).read())]
                assert record["class"] == record["name"].split("/")[1]
                with Image.open(io.BytesIO(tar.extractfile(image).read())) as picture:
                    assert picture.format == "JPEG" and min(picture.size) == 24
    raw = open_data(str(photos), image_size=16).unlabelled
    assert sorted(names) == sorted(raw.describe(i) for i in range(30))
    assert len(list(packed.glob("train-*.tar"))) == 4 and len(list(packed.glob("val-*.tar"))) == 2


def test_webdataset_reads_the_shards(packed: Path) -> None:
    wds = pytest.importorskip("webdataset")
    urls = [str(path) for path in sorted(packed.glob("train-*.tar"))]
    samples = list(wds.WebDataset(urls, shardshuffle=False).decode("rgb8"))
    source = open_data(str(packed), image_size=16).train
    assert source is not None and source.labels is not None
    assert len(samples) == len(source) == 30
    for index, sample in enumerate(samples):
        assert sample["cls"] == source.labels[index]
        assert sample["json"]["name"] == source.describe(index)
        assert np.array_equal(sample["jpg"], source.read(index).permute(1, 2, 0).numpy())


def test_images_are_shrunk_and_never_enlarged(photos: Path, tmp_path: Path) -> None:
    assert pack(photos, tmp_path / "small", "--size", "20", "--quality", "100") == 0
    source = open_data(str(tmp_path / "small"), image_size=16).unlabelled
    for index in range(len(source)):
        image, raw = source.read(index), read_image(photos / source.describe(index))
        assert image.shape[1:] == (20, round(raw.shape[2] / 2))
        shrunk = F.interpolate(raw[None].float(), image.shape[1:], mode="bilinear", antialias=True)
        difference = (image - shrunk[0]).movedim(0, 2) @ torch.tensor([0.299, 0.587, 0.114])
        assert difference.abs().mean() < 1  # colours are halved by JPEG, brightness is not
    assert pack(photos, tmp_path / "large", "--size", "300") == 0
    source = open_data(str(tmp_path / "large"), image_size=16).unlabelled
    for index in range(len(source)):
        name = source.describe(index)
        image, raw = source.read(index), read_image(photos / name)
        assert image.shape == raw.shape
        if name.endswith(".jpg"):  # small enough already: not encoded again
            assert torch.equal(image, raw)


def test_quality_changes_the_size(photos: Path, tmp_path: Path) -> None:
    sizes = []
    for quality in ("50", "92"):
        assert pack(photos, tmp_path / quality, "--size", "24", "--quality", quality) == 0
        with np.load(as_version_1(tmp_path / quality) / "lewel-samples.npz") as arrays:
            sizes.append(int(arrays["train/sizes"].sum()))
    assert sizes[0] < sizes[1]


def test_a_rotated_image_is_packed_upright(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(smooth(1, 40, 60))
    turned.save(tmp_path / "data" / "turned.jpg", exif=exif)
    turned.save(tmp_path / "data" / "plain.jpg")
    assert pack(tmp_path / "data", tmp_path / "out", "--size", "100") == 0
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as tar:
        sizes = {
            json.load(tar.extractfile(about))["name"]: Image.open(tar.extractfile(image)).size
            for image, about in zip(tar.getmembers()[::2], tar.getmembers()[1::2], strict=True)
        }
    assert sizes == {"turned.jpg": (40, 60), "plain.jpg": (60, 40)}


def test_keep_copies_the_files(photos: Path, tmp_path: Path) -> None:
    assert pack(photos, tmp_path / "kept", "--keep", "--size", "16") == 0
    kinds = set()
    with tarfile.open(tmp_path / "kept" / "train-000000.tar") as tar:
        members = tar.getmembers()
        for image, about in zip(members[::3], members[2::3], strict=True):
            name = json.load(tar.extractfile(about))["name"]
            assert tar.extractfile(image).read() == (photos / name).read_bytes()
            assert Path(image.name).suffix == Path(name).suffix
            kinds.add(Path(name).suffix)
    assert kinds == {".jpg", ".png"}


def test_arrays_and_packed_data_are_packed_too(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lewel.data.sources.scenes.SIZES", {"train": 12, "val": 4})
    assert pack("scenes", tmp_path / "scenes", "--keep", "--size", "32") == 0
    scenes = open_data("scenes", image_size=22)  # drawn at 33
    kept = open_data(str(tmp_path / "scenes"), image_size=16)
    assert kept.val is not None and len(kept.val) == 4
    assert kept.unlabelled.read(0).shape == (3, 32, 32)
    assert kept.unlabelled.classes == scenes.unlabelled.classes
    assert pack(packed, tmp_path / "again", "--keep", "--seed", "3") == 0
    before, after = (
        {source.describe(i): source.read(i) for i in range(30)}
        for place in (packed, tmp_path / "again")
        for source in [open_data(str(place), image_size=16).unlabelled]
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_workers_do_not_change_a_byte(photos: Path, packed: Path, tmp_path: Path) -> None:
    flags = ("--size", "24", "--shard-images", "8", "--workers", "2")
    assert pack(photos, tmp_path / "two", *flags) == 0
    assert content(tmp_path / "two") == content(packed)


def test_the_same_command_resumes_wherever_it_was_stopped(
    photos: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        pass

    real = os.replace
    left = [0]

    def replace(*names: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Cut
        real(*names)

    monkeypatch.setattr(files.os, "replace", replace)
    flags = ("--size", "24", "--shard-images", "8")
    for allowed in range(0, 15, 2):  # one manifest, six shards with a record each, two of the index
        left[0] = allowed
        out = tmp_path / str(allowed)
        with pytest.raises(Cut):
            pack(photos, out, *flags)
        assert not (out / "lewel-index.json").exists()
        left[0] = 1000
        assert pack(photos, out, *flags) == 0
        assert 1000 - left[0] == (15 if allowed == 0 else 15 - (allowed - 1) // 2 * 2)
        assert content(out) == content(packed)
        assert (out / "lewel-index.json").exists()


def test_a_kill_in_the_middle_of_a_shard(photos: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    slow = (
        "import sys, time; from lewel.data.pack import encoding; from lewel.cli.main import run; "
        "real = encoding.encode\n"
        "def encode(*a): time.sleep(0.02); return real(*a)\n"
        "encoding.encode = encode; sys.exit(run(sys.argv[1:]))"
    )
    words = ["pack", str(photos), str(out), "--size", "24", "--shard-images", "8"]
    process = subprocess.Popen([sys.executable, "-c", slow, *words, "--workers", "0"])
    end = time.monotonic() + 180
    while not (out / "train-000001.tar.lewel-partial").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "lewel-index.json").exists()
    whole = content(out)
    assert whole.keys() == {"train-000000.tar"}
    assert run([*words, "--workers", "0"]) == 0
    assert content(out) == content(packed)
    assert not list(out.rglob("*.lewel-partial"))


def test_damaged_shards_are_written_again(photos: Path, packed: Path, tmp_path: Path) -> None:
    flags = ("--size", "24", "--shard-images", "8")
    assert pack(photos, tmp_path / "out", *flags) == 0
    (tmp_path / "out" / "train-000002.tar").write_bytes(b"nothing")
    (tmp_path / "out" / "val-000000.tar").unlink()
    for number, text in enumerate(("[]", '{"bad": []}', "{", "null")):
        (tmp_path / "out" / "records" / f"train-{number:06d}.json").write_text(text)
    assert pack(photos, tmp_path / "out", *flags) == 0
    assert content(tmp_path / "out") == content(packed)


def test_other_settings_are_refused_and_shown(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert pack(photos, out, "--size", "24") == 0
    before = content(out)
    assert pack(photos, out, "--size", "32", "--keep") == 2
    message = capsys.readouterr().err
    assert "size was 24, is 32" in message and "keep was False, is True" in message
    assert content(out) == before
    (tmp_path / "file").write_text("x")
    assert pack(photos, tmp_path / "file") == 2
    assert "is a file" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert pack(photos, tmp_path / "mine") == 2
    assert "holds other files, no packed data" in capsys.readouterr().err
    assert pack(photos, tmp_path / "q", "--quality", "0") == 2
    assert (
        "quality is '0', but input should be greater than or equal to 1: change it with --quality"
        in capsys.readouterr().err
    )
    (tmp_path / "empty").mkdir()
    assert pack(tmp_path / "empty", tmp_path / "q") == 2
    assert "empty holds no image" in capsys.readouterr().err
    assert run(["pack", str(photos)]) == 2
    assert not (tmp_path / "q").exists()


def test_unreadable_images_are_left_out_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_photos(tmp_path / "data", train=60, val=9)
    (data / "train" / "cat" / "003.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    out = tmp_path / "out"
    assert pack(data, out, "--size", "24", "--shard-images", "16") == 0
    assert "corrupt and left out: 1 (" in capsys.readouterr().out
    lines = [json.loads(line) for line in (out / "corrupt_images.jsonl").read_text().splitlines()]
    assert lines == [{"image": "train/cat/003.png", "reason": "truncated PNG", "split": "train"}]
    source = open_data(str(out), image_size=16).unlabelled
    assert len(source) == 59 and source.labels is not None
    for index in range(59):
        assert CLASSES[source.labels[index]] == source.describe(index).split("/")[1]
    for number in range(0, 20, 2):
        path = next(data.glob(f"train/*/{number:03}.jpg"))
        path.write_bytes(path.read_bytes()[:200])
    assert pack(data, tmp_path / "worse") == 1
    assert "more than 5%" in capsys.readouterr().err
    assert len((tmp_path / "worse" / "corrupt_images.jsonl").read_text().splitlines()) == 11
    assert not (tmp_path / "worse" / "lewel-index.json").exists()


def test_repaired_images_are_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_photos(tmp_path / "data", train=12, val=3)
    image = data / "train" / "cat" / "000.jpg"
    whole = image.read_bytes()
    image.write_bytes(whole[:100])
    out = tmp_path / "out"
    assert pack(data, out, "--shard-images", "6") == 1
    assert "1 of the 15 images read" in capsys.readouterr().err
    image.write_bytes(whole)
    assert pack(data, out, "--shard-images", "6") == 0
    assert not (out / "corrupt_images.jsonl").exists()
    assert len(open_data(str(out), image_size=16).unlabelled) == 12


def test_an_image_too_large_for_jpeg_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_photos(tmp_path / "data", train=30, val=3)
    Image.new("RGB", (65_501, 1)).save(data / "train" / "cat" / "long.png")
    assert pack(data, tmp_path / "out") == 0
    assert "left out: 1" in capsys.readouterr().out
    assert (
        "a JPEG has at most 65500 a side" in (tmp_path / "out" / "corrupt_images.jsonl").read_text()
    )


def test_a_full_disk_is_one_message(
    photos: Path,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = writing.TarWriter.add
    added = []

    def add(self: writing.TarWriter, *sample: object) -> None:
        added.append(sample)
        if len(added) == 13:
            raise OSError(28, "No space left on device")
        real(self, *sample)

    monkeypatch.setattr(writing.TarWriter, "add", add)
    flags = ("--size", "24", "--shard-images", "8")
    assert pack(photos, tmp_path / "out", *flags) == 1
    assert "is full (No space left on device): make room" in capsys.readouterr().err
    assert content(tmp_path / "out").keys() == {"train-000000.tar"}
    assert pack(photos, tmp_path / "out", *flags) == 0
    assert content(tmp_path / "out") == content(packed)


def test_two_processes_do_not_pack_into_one_folder(
    photos: Path, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Record locks belong to a process: another one must hold it.
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(packed / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert pack(photos, packed, "--size", "24", "--shard-images", "8") == 2
        assert "Another process is packing" in capsys.readouterr().err
        other.communicate()


def test_a_killed_worker_is_one_message(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("lewel.data.pack.encoding.encode", die)  # also in forked workers
    assert pack(photos, tmp_path / "out", "--workers", "1") == 1
    assert "with fewer --workers" in capsys.readouterr().err
