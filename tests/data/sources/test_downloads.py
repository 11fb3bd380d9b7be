"""Downloads are atomic, by one process at a time, and fail with one message."""

import errno
import hashlib
import io
import multiprocessing
import os
import socket
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from urllib.error import HTTPError, URLError

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

from lewel.data.sources import catalogue, downloads, named
from lewel.data.sources.named import NAMES

from .conftest import Internet
from .layouts import LAYOUTS
from .test_named import error_of, open_set

pytestmark = pytest.mark.usefixtures("root", "internet")


def pack(builder: str, folder: str, *, tmp_path: Path, mode: str = "w:gz") -> bytes:
    """The archive of a folder that a builder writes."""
    LAYOUTS[builder](tmp_path / "made")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:
        tar.add(tmp_path / "made" / folder, folder)
    return packed.getvalue()


def left(root: Path) -> list[str]:
    """Everything in the root but the lock."""
    return sorted(path.name for path in root.iterdir() if path.suffix != ".lock")


def test_a_failed_download_is_one_message_and_fast(root: Path) -> None:
    began = time.monotonic()
    for name in NAMES:
        text = error_of(name)
        assert text.startswith(f"{name} cannot be downloaded (")
        for archive in catalogue.TABLE[name].archives:
            assert os.path.basename(archive) in text
            assert f" into {root / os.path.dirname(archive)}".rstrip("/") in text
    assert time.monotonic() - began < 10
    assert error_of("cifar10") == (
        "cifar10 cannot be downloaded (name or service not known): put cifar-10-python.tar.gz "
        f"into {root} by hand, or set LEWEL_DATA to a folder that has the data."
    )
    assert set(left(root)) <= {"caltech101"}  # torchvision makes this folder first


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HTTPError("http://x", 404, "Not Found", {}, None), "the server returned 404 Not Found"),
        (URLError(ConnectionRefusedError(111, "Connection refused")), "connection refused"),
        (URLError("no host given"), "no host given"),
        (TimeoutError("timed out"), "timed out"),
        (
            RuntimeError("Error downloading x:\nTried y, got:\n<urlopen error [Errno -2] No>\n"),
            "no",
        ),
        (RuntimeError("File not found or corrupted."), "file not found or corrupted"),
        (OSError(), "OSError"),
    ],
)
def test_reasons(error: Exception, reason: str, internet: Internet) -> None:
    internet.error = error
    assert f"cifar10 cannot be downloaded ({reason})" in error_of("cifar10")


def test_downloads_time_out(internet: Internet, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float | None] = []

    def timed_out(*_: object, **__: object) -> object:
        limits.append(socket.getdefaulttimeout())
        raise TimeoutError("timed out")

    monkeypatch.setattr("urllib.request.urlopen", timed_out)
    before = socket.getdefaulttimeout()
    assert "(timed out)" in error_of("cifar10")
    assert limits == [downloads.TIMEOUT] and downloads.TIMEOUT <= 30
    assert socket.getdefaulttimeout() == before


def test_a_download_that_breaks_leaves_nothing(root: Path, internet: Internet) -> None:
    internet.files = {"fgvc-aircraft-2013b.tar.gz": bytes(100_000)}  # it has no checksum
    internet.breaks = ConnectionResetError(104, "Connection reset by peer")
    assert "(connection reset by peer)" in error_of("fgvc_aircraft")
    assert left(root) == []


def test_a_download_with_a_wrong_checksum_leaves_nothing(root: Path, internet: Internet) -> None:
    internet.files = {"cifar-10-python.tar.gz": b"not what it was"}
    assert "cannot be downloaded (file not found or corrupted)" in error_of("cifar10")
    assert left(root) == []


def test_an_interrupted_download_leaves_nothing(root: Path, internet: Internet) -> None:
    internet.files = {"cifar-10-python.tar.gz": bytes(100_000)}
    internet.breaks = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        open_set("cifar10")
    assert left(root) == []


def test_a_download_is_checked_and_opened(
    root: Path, internet: Internet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack("cifar10", "cifar-10-batches-py", tmp_path=tmp_path)
    sums = {
        path.name: hashlib.md5(path.read_bytes()).hexdigest()
        for path in (tmp_path / "made/cifar-10-batches-py").iterdir()
    }
    batches = [[f"data_batch_{i}", sums[f"data_batch_{i}"]] for i in range(1, 6)]
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", hashlib.md5(packed).hexdigest())
    monkeypatch.setattr(datasets.CIFAR10, "train_list", batches)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setitem(datasets.CIFAR10.meta, "md5", sums["batches.meta"])
    internet.files = {"cifar-10-python.tar.gz": packed}
    data = open_set("cifar10")
    assert (len(data.unlabelled), len(data.val or ())) == (20, 6)
    assert left(root) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]
    internet.files = {}
    assert len(open_set("cifar10").unlabelled) == 20
    # A file that is damaged later is detected, and replaced from the archive.
    (root / "cifar-10-batches-py/data_batch_2").write_bytes(b"damaged")
    assert len(open_set("cifar10").unlabelled) == 20


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize(
    ("name", "archive", "folder"),
    [
        ("cifar10", "cifar-10-python.tar.gz", "cifar-10-batches-py"),
        ("stl10", "stl10_binary.tar.gz", "stl10_binary"),
        ("food101", "food-101.tar.gz", "food-101"),
        ("imagenette", "imagenette2.tgz", "imagenette2"),
    ],
)
def test_archives_put_in_place_by_hand(
    name: str, archive: str, folder: str, root: Path, tmp_path: Path
) -> None:
    (root / archive).write_bytes(pack(name, folder, tmp_path=tmp_path))
    assert len(open_set(name).train or ()) == 20
    assert left(root) == sorted([archive, folder])
    assert not (root / archive).is_symlink()


@pytest.mark.usefixtures("any_checksum")
def test_archives_in_a_folder_of_their_own(root: Path, tmp_path: Path) -> None:
    LAYOUTS["eurosat"](tmp_path / "made")
    (root / "eurosat").mkdir()
    with zipfile.ZipFile(root / "eurosat/EuroSAT.zip", "w") as packed:
        for path in (tmp_path / "made/eurosat").rglob("*.jpg"):
            packed.write(path, path.relative_to(tmp_path / "made/eurosat"))
    assert len(open_set("eurosat").unlabelled) == 20
    assert sorted(path.name for path in (root / "eurosat").iterdir()) == ["2750", "EuroSAT.zip"]
    assert left(root) == ["eurosat"]


@pytest.mark.usefixtures("any_checksum")
def test_a_half_unpacked_archive_is_never_used(root: Path, tmp_path: Path) -> None:
    archive = pack("food101", "food-101", tmp_path=tmp_path)
    (root / "food-101.tar.gz").write_bytes(archive[: len(archive) // 2])
    text = error_of("food101")
    assert f"put an undamaged food-101.tar.gz into {root}." in text
    assert left(root) == ["food-101.tar.gz"]
    # A killed process leaves the temporary folder; the next process starts over.
    (root / ".food101.lewel-partial/food-101/images").mkdir(parents=True)
    (root / ".food101.lewel-partial/food-101/meta").mkdir()
    (root / "food-101.tar.gz").write_bytes(archive)
    assert len(open_set("food101").unlabelled) == 20
    assert left(root) == ["food-101", "food-101.tar.gz"]


@pytest.mark.usefixtures("any_checksum")
def test_imagenet_is_unpacked_from_its_archives(root: Path, tmp_path: Path) -> None:
    LAYOUTS["imagenet"](tmp_path / "made")
    made, wnids = tmp_path / "made/imagenet", ["n01440764", "n01443537", "n01484850", "n01491361"]
    (root / "imagenet").mkdir()
    with tarfile.open(root / "imagenet/ILSVRC2012_img_train.tar", "w") as tar:
        for wnid in wnids:
            with tarfile.open(made / f"{wnid}.tar", "w") as inner:
                for path in (made / "train" / wnid).iterdir():
                    inner.add(path, f"{wnid}_{path.stem}.JPEG")
            tar.add(made / f"{wnid}.tar", f"{wnid}.tar")
    with tarfile.open(root / "imagenet/ILSVRC2012_img_val.tar", "w") as tar:
        for i in range(8):
            tar.add(made / "val" / wnids[i % 4] / f"image_{i // 4 + 1:04}.jpg", f"val_{i}.JPEG")
    fields = [("id", int), ("wnid", "O"), ("words", "O"), ("gloss", "O"), ("children", int)]
    rows = [(i, wnid, f"word{i}, other", "", 0) for i, wnid in enumerate(wnids, start=1)]
    devkit = made / "ILSVRC2012_devkit_t12"
    (devkit / "data").mkdir(parents=True)
    savemat(devkit / "data/meta.mat", {"synsets": np.array([*rows, (9, "n0", "", "", 4)], fields)})
    ground_truth = "".join(f"{i % 4 + 1}\n" for i in range(8))
    (devkit / "data/ILSVRC2012_validation_ground_truth.txt").write_text(ground_truth)
    with tarfile.open(root / "imagenet/ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        tar.add(devkit, devkit.name)
    data = open_set("imagenet")
    assert data.train is not None and data.val is not None
    assert data.train.classes == data.val.classes == tuple(wnids)
    assert (len(data.train), len(data.val)) == (20, 8)
    assert data.val.describe(7) == "imagenet/val/n01491361/val_7.JPEG"
    assert left(root) == ["imagenet"]


def _open_and_count(name: str, counts: "multiprocessing.Queue[int]") -> None:
    counts.put(len(open_set(name).unlabelled))


@pytest.mark.usefixtures("any_checksum")
def test_of_two_processes_one_downloads(
    internet: Internet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = named._fetch

    def noted(name: str, root: str) -> named.Splits:
        (tmp_path / f"fetched by {os.getpid()}").touch()
        return fetch(name, root)

    monkeypatch.setattr(named, "_fetch", noted)
    packed = pack("cifar10", "cifar-10-batches-py", tmp_path=tmp_path)
    internet.files = {"cifar-10-python.tar.gz": packed}
    internet.log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    both = [context.Process(target=_open_and_count, args=("cifar10", counts)) for _ in range(2)]
    for process in both:
        process.start()
    assert [counts.get(timeout=60) for _ in both] == [20, 20]
    for process in both:
        process.join()
    assert internet.log.read_text() == "." * -(-len(packed) // 32_768)
    assert len(list(tmp_path.glob("fetched by *"))) == 1


def test_a_root_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEWEL_DATA", str(tmp_path / "file/data"))
    assert f"Cannot write to {tmp_path}/file/data" in error_of("cifar10")


def test_a_full_disk(root: Path, internet: Internet) -> None:
    internet.files = {"cifar-10-python.tar.gz": bytes(100_000)}
    internet.breaks = OSError(errno.ENOSPC, "No space left on device")
    assert f"Cannot write to {root}, where data sets are kept (no space" in error_of("cifar10")
    assert left(root) == []


def test_missing_scipy_is_reported_before_the_download(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named, "find_spec", lambda package: None)
    assert error_of("svhn") == "svhn needs the package scipy: pip install scipy."
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    monkeypatch.setattr("torchvision.datasets.utils.check_md5", lambda *_, **__: True)
    LAYOUTS["svhn"](root)
    assert error_of("svhn").startswith("svhn needs the package scipy")


def test_a_file_system_without_locks_takes_downloads(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", no_locks)
    with downloads.locked(str(root), "cifar10"):
        assert (root / ".cifar10.lock").exists()
