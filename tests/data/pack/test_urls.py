"""Packing from a URL and to a URL: the same bytes as from and into a folder."""

import errno
import functools
import http.server
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from PIL import Image

from lewel.cli.main import run
from lewel.data.pack.stores import open_store
from lewel.data.pack.urls import expanded, shown, without_secrets
from lewel.data.sources.open import open_data
from lewel.data.sources.tars import open_tars
from lewel.errors import UserError
from tests.data.pack.photos import make_photos, pack, smooth
from tests.data.pack.test_write import content
from tests.faults.storage import Faults, Handler, served

FLAGS = ("--size", "24", "--shard-images", "8", "--workers", "0")
TEXTS = ("lewel-index.json", "lewel-samples.bin")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "shards"
    assert pack(photos, out, *FLAGS) == 0
    return out


def assert_same_pack(one: Path, other: Path) -> None:
    assert content(one) == content(other) and content(one)
    for name in TEXTS:
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_url_as_target_gets_the_same_bytes(photos: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "shards"
    assert run(["pack", str(photos), f"file://{out}", *FLAGS]) == 0
    assert_same_pack(out, packed)
    assert run(["pack", "--check", f"file://{out}"]) == 0
    assert len(open_data(f"file://{out}", image_size=16).unlabelled) == 30


def test_a_url_as_source_gives_the_same_bytes(photos: Path, packed: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(f"{photos}/", f"/{tmp_path.name}/photos/", recursive=True)
    url = f"memory://{tmp_path.name}/photos"
    assert run(["pack", url, str(tmp_path / "out"), *FLAGS]) == 0
    assert_same_pack(tmp_path / "out", packed)


def test_a_web_server_that_lists_its_folders_is_a_source(
    photos: Path, packed: Path, tmp_path: Path
) -> None:
    handler = functools.partial(Listing, directory=str(photos.parent))
    with listening(handler) as url:
        assert run(["pack", f"{url}/photos", str(tmp_path / "out"), *FLAGS]) == 0
    assert_same_pack(tmp_path / "out", packed)


@contextmanager
def listening(handler: Any) -> Iterator[str]:
    """A server on a free port -> its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Listing(http.server.SimpleHTTPRequestHandler):
    """Python's own server, which lists folders."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 12, 14])
def test_an_interrupted_upload_is_resumed(
    photos: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    class Cut(BaseException):
        pass

    real, sent = LocalFileSystem.put_file, list[str]()

    def put_file(self: Any, local: str, remote: str, **options: Any) -> None:
        sent.append(os.path.basename(remote))
        if len(sent) == cut + 1:
            whole = Path(local).read_bytes()
            Path(remote).write_bytes(whole[: len(whole) // 2])  # not atomic, as some are
            raise Cut
        real(self, local, remote, **options)

    monkeypatch.setattr(LocalFileSystem, "put_file", put_file)
    out = tmp_path / "out"
    words = ["pack", str(photos), f"file://{out}", *FLAGS]
    with pytest.raises(Cut):
        run(words)
    if cut < 14:  # the last file is the index
        assert not (out / "lewel-index.json").exists()
    if cut == 0:
        (out / "lewel-pack.json").unlink()  # half a manifest is refused, and named
    elif cut == 14:
        (out / "lewel-index.json").unlink()
    again = len(sent)
    assert run(words) == 0
    assert_same_pack(out, packed)
    assert sent[-1] == "lewel-index.json"
    finished = 1 + (cut - 1) // 2 * 2 if cut else 0  # the manifest and shards, with their records
    assert len(sent) - again == 15 - finished


def test_a_killed_upload_is_resumed(photos: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    slow = (
        "import sys, time; from lewel.data.pack import encoding; from lewel.cli.main import run; "
        "real = encoding.encode\n"
        "def encode(*a): time.sleep(0.02); return real(*a)\n"
        "encoding.encode = encode; sys.exit(run(sys.argv[1:]))"
    )
    words = ["pack", str(photos), f"file://{out}", *FLAGS]
    process = subprocess.Popen([sys.executable, "-c", slow, *words])
    end = time.monotonic() + 180
    while not (out / "records" / "train-000001.json").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "lewel-index.json").exists()
    assert run(words) == 0
    assert_same_pack(out, packed)


def test_a_damaged_shard_at_a_url_is_repaired(photos: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["pack", str(photos), f"file://{out}", *FLAGS]
    assert run(words) == 0
    whole = (out / "train-000002.tar").read_bytes()
    (out / "train-000002.tar").write_bytes(whole[:600] + bytes(8) + whole[608:])
    assert run(["pack", "--check", f"file://{out}"]) == 1
    assert run(words) == 0
    assert_same_pack(out, packed)


def test_wrong_targets_are_one_message(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    records = tmp_path / "theirs" / "records"  # somebody else's
    records.mkdir(parents=True)
    (records / "patients.csv").write_text("x")
    assert pack(photos, records.parent, *FLAGS) == 2
    assert "holds other files, no packed data" in capsys.readouterr().err
    for target, message in (
        (f"file://{records.parent}", "holds other files, no packed data"),
        (f"file://{mine}", "holds other files, no packed data"),
        ("https://me:secret@127.0.0.1/shards", "cannot be written to by https"),
        ("nosuch://me:secret@place/x", "is not supported by fsspec"),
    ):
        assert run(["pack", str(photos), target, *FLAGS]) == 2
        said = capsys.readouterr().err
        assert message in said and "secret" not in said and "Traceback" not in said
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    assert [path.name for path in records.parent.rglob("*")] == ["records", "patients.csv"]
    url = f"file://{photos}"
    assert run(["pack", url, f"{url}/shards", *FLAGS]) == 2
    assert "would become a part of it" in capsys.readouterr().err
    assert run(["pack", f"file://{mine}", str(tmp_path / "q"), *FLAGS]) == 2
    assert "holds no image: 1 files were listed" in capsys.readouterr().err
    assert run(["pack", f"file://{tmp_path}/nothing", str(tmp_path / "q"), *FLAGS]) == 2
    assert not (tmp_path / "q").exists()
    out = f"file://{tmp_path}/other"
    assert run(["pack", str(photos), out, *FLAGS]) == 0
    assert run(["pack", str(photos), out, "--size", "20", "--workers", "0"]) == 2
    assert "size was 24, is 20" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--check", "zip://a::http://me:s3kr3t@127.0.0.1:1/no.zip", "--storage-timeout", "0.001"),
        ("--check", "here", "sftp://me:s3kr3t@host/x"),
        ("a", "b", "sftp://me:s3kr3t@host/x"),
        ("https://me:/s3kr3t@host/x", "b", "--storage-timeout", "0.001"),
    ],
)
def test_no_message_holds_a_password(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pack", *words]) in (1, 2)
    said = capsys.readouterr()
    assert said.err and "s3kr3t" not in said.err + said.out and "Traceback" not in said.err


def test_a_back_end_that_connects_at_once_is_waited_for_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"ftp://127.0.0.1:{taken.getsockname()[1]}/x"
        assert run(["pack", url, str(tmp_path / "q"), "--storage-timeout", "0.001"]) == 1
    assert f"{url} has not answered for" in capsys.readouterr().err
    assert run(["pack", f"zip://a::file://{tmp_path}/no.zip", str(tmp_path / "q")]) == 2
    assert "no.zip cannot be opened" in capsys.readouterr().err


def test_only_files_of_packing_are_replaced(photos: Path, tmp_path: Path) -> None:
    for name in ("movie.partial", ".lock"):
        mine = tmp_path / name.strip(".") / name
        mine.parent.mkdir()
        mine.write_text("mine")
        assert pack(photos, mine.parent, *FLAGS) == 2
        assert mine.read_text() == "mine" and len(list(mine.parent.iterdir())) == 1
    out = tmp_path / "out"
    assert pack(photos, out, *FLAGS) == 0
    mine, ours = out / "train-000000.tar.partial", out / "train-000000.tar.lewel-partial"
    mine.write_text("mine")
    ours.write_text("a packing that was killed")
    assert pack(photos, out, *FLAGS) == 0
    assert mine.exists() and not ours.exists()


def test_a_file_system_without_locks_is_no_other_process(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some Lustre and NFS: packing begins, and resumes."""

    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", no_locks)
    for _ in range(2):
        assert pack(photos, tmp_path / "out", *FLAGS) == 0


def test_annotations_at_a_url_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("images", "masks"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "data" / folder / "a.png")
    assert run(["pack", f"file://{tmp_path}/data", str(tmp_path / "out")]) == 2
    assert "packed from a folder only" in capsys.readouterr().err


def write_tar(path: Path, first: int, count: int, labelled: bool = True, form: int = 1) -> None:
    """A tar as WebDataset's own writer makes it, with a mask beside each image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for number in range(first, first + count):
            parts = {"seg.png": b"\x89PNG", "jpg": jpeg(number), "json": b"{}"}
            if labelled:
                parts["cls"] = str(number % 3).encode()
            for kind, data in parts.items():
                info = tarfile.TarInfo(f"a/{number:05d}.{kind}")
                info.size, info.mtime = len(data), 1.5  # type: ignore[assignment]
                tar.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_webdataset_tars_are_packed(tmp_path: Path, form: int) -> None:
    data = tmp_path / "data"
    for number in range(3):
        write_tar(data / f"set-train-{number:02d}.tar", 10 * number, 10, form=form)
    write_tar(data / "set-val-00.tar", 100, 6, form=form)
    assert run(["pack", str(data), str(tmp_path / "local"), *FLAGS, "--keep"]) == 0
    assert run(["pack", f"file://{data}", str(tmp_path / "url"), *FLAGS, "--keep"]) == 0
    assert content(tmp_path / "local") == content(tmp_path / "url")
    found = open_data(str(tmp_path / "local"), image_size=16)
    assert found.val is not None and len(found.unlabelled) == 30 and len(found.val) == 6
    assert found.unlabelled.classes == ("0", "1", "2")
    for index in range(30):
        name = found.unlabelled.describe(index)
        number = int(Path(name).stem)
        assert name == f"set-train-{number // 10:02d}.tar/a/{number:05d}.jpg"
        assert found.unlabelled.labels is not None
        assert found.unlabelled.labels[index] == number % 3
    pattern = f"file://{data}/set-train-{{00..01}}.tar"
    assert run(["pack", pattern, str(tmp_path / "two"), *FLAGS]) == 0
    assert len(open_data(str(tmp_path / "two"), image_size=16).unlabelled) == 20
    assert run(["pack", str(data / "set-val-00.tar"), str(tmp_path / "one"), *FLAGS]) == 0
    assert len(open_data(str(tmp_path / "one"), image_size=16).unlabelled) == 6
    with pytest.raises(UserError, match=r"holds no image: 4 files .* Pack WebDataset's tars first"):
        open_data(str(data), image_size=16)


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def jpeg(number: int) -> bytes:
    picture = io.BytesIO()
    Image.fromarray(smooth(number, 20, 24)).save(picture, "JPEG")
    return picture.getvalue()


def test_no_image_of_a_tar_is_lost_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / "a.tar", "w") as tar:
        for number in range(4):  # a camera's names, as no WebDataset writer makes them
            add(tar, f"v1.0/trip.{number}.jpg", jpeg(number))
            add(tar, f"v1.0/trip.{number}.cls", str(number - 2).encode())
        for name in ("b.seg.png", "b.jpg", "b.png"):
            add(tar, name, jpeg(9))
    assert run(["pack", str(tmp_path / "data"), str(tmp_path / "out"), *FLAGS]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "2 images beside another of their sample are left out, for example a.tar/b.seg.png" in said
    )
    assert "without a .cls, or with a negative one: they have no labels" in said
    found = open_data(str(tmp_path / "out"), image_size=16).unlabelled
    names = sorted(found.describe(index) for index in range(len(found)))
    assert names == ["a.tar/b.jpg", *(f"a.tar/v1.0/trip.{number}.jpg" for number in range(4))]


def test_a_dotted_name_has_its_own_label(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / "a.tar", "w") as tar:
        for number in range(4):
            add(tar, f"trip.{number}.jpg", jpeg(number))
            add(tar, f"trip.{number}.cls", f"{number % 2}".encode())
    assert run(["pack", str(tmp_path / "data"), str(tmp_path / "out"), *FLAGS]) == 0
    found = open_data(str(tmp_path / "out"), image_size=16).unlabelled
    assert found.labels is not None
    for index in range(4):
        assert int(found.describe(index).split(".")[-2]) % 2 == found.labels[index]


def test_links_joined_tars_and_shared_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with tarfile.open(data / "a.tar", "w") as tar:
        for number in range(3):
            add(tar, f"d/{number}.image.jpg", jpeg(number))
            add(tar, f"d/{number}.cls", f"{number % 2}".encode())
        for name, kind, target in (("e", tarfile.LNKTYPE, "d/0"), ("d/f", tarfile.SYMTYPE, "1")):
            link = tarfile.TarInfo(f"{name}.jpg")
            link.type, link.linkname = kind, f"{target}.image.jpg"
            tar.addfile(link)
            add(tar, f"{name}.cls", b"1")
    (data / "._a.tar").write_bytes(b"of macOS")
    assert run(["pack", str(data), str(tmp_path / "out"), *FLAGS, "--keep"]) == 0
    found = open_data(str(tmp_path / "out"), image_size=16).unlabelled
    assert found.labels is not None
    labels = {found.describe(n)[6:]: int(found.labels[n]) for n in range(len(found))}
    own = {"d/0.image.jpg": 0, "d/1.image.jpg": 1, "d/2.image.jpg": 0}
    assert labels == {**own, "e.jpg": 1, "d/f.jpg": 1}
    pixels = {found.describe(n)[6:]: found.read(n) for n in range(len(found))}
    assert pixels["e.jpg"].equal(pixels["d/0.image.jpg"])
    assert pixels["d/f.jpg"].equal(pixels["d/1.image.jpg"])
    whole = (data / "a.tar").read_bytes()
    (data / "a.tar").write_bytes(whole + whole)
    assert run(["pack", str(data), str(tmp_path / "two"), *FLAGS]) == 2
    assert "more follows after its end" in capsys.readouterr().err
    with tarfile.open(data / "a.tar", "w") as tar:
        tar.addfile(link)
    assert run(["pack", str(data), str(tmp_path / "two"), *FLAGS]) == 2
    assert "is a link to 1.image.jpg, which is not in it" in capsys.readouterr().err


def test_validation_tars_that_are_not_used_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tar(tmp_path / "data" / "train-0.tar", 0, 9)
    val = tmp_path / "data" / "val-0.tar"
    for labelled, count in ((False, 4), (True, 0)):
        write_tar(val, 20, count, labelled)
        out = tmp_path / f"out{count}"
        assert run(["pack", str(tmp_path / "data"), str(out), *FLAGS]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "are left out, for example val-0.tar" in said
        assert open_data(str(out), image_size=16).unlabelled.classes == ("0", "1", "2")


def test_an_outage_while_a_size_is_asked_for_is_waited_for(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = Faults(unavailable=2, heads=1)
    with served(packed, faults) as url:
        assert run(["pack", "--check", url]) == 0
        assert not faults.unavailable and not faults.heads
        (packed / "missing.tar").unlink(missing_ok=True)
        assert run(["pack", f"{url}/missing.tar", str(tmp_path / "q")]) == 2
        assert "missing.tar does not exist" in capsys.readouterr().err
        faults.unavailable, faults.heads, faults.status = 9, 9, 403
        assert run(["pack", f"{url}/val-000000.tar", str(tmp_path / "q")]) == 2
    said = capsys.readouterr().err
    assert "403" in said and "Traceback" not in said


class Signed(Handler):
    """A server that answers signed requests alone."""

    def parse_request(self) -> bool:
        if super().parse_request() and not self.path.endswith("?sig=s3kr3t"):
            self.send_error(403)
            return False
        return True


def test_a_signed_url_is_read(packed: Path, tmp_path: Path) -> None:
    handler = functools.partial(Signed, Faults(), directory=str(packed.parent))
    with listening(handler) as url:
        assert run(["pack", "--check", f"{url}/{packed.name}/?sig=s3kr3t"]) == 0
        place = f"{url}/{packed.name}/val-000000.tar?sig=s3kr3t"
        assert run(["pack", place, str(tmp_path / "v"), *FLAGS]) == 0
    for path in (tmp_path / "v").rglob("*"):
        assert path.is_dir() or b"s3kr3t" not in path.read_bytes()


def test_classes_at_a_web_server_have_their_own_names(photos: Path, tmp_path: Path) -> None:
    for name in ("big cat", "dog#1"):
        shutil.copytree(photos / "train" / "cat", tmp_path / "own" / name)
    with listening(functools.partial(Listing, directory=str(tmp_path))) as url:
        assert run(["pack", f"{url}/own", str(tmp_path / "out"), *FLAGS]) == 0
    found = open_data(str(tmp_path / "out"), image_size=16).unlabelled
    assert found.classes == ("big cat", "dog#1")
    assert found.describe(0).split("/")[0] in ("big cat", "dog#1")


def test_a_server_without_ranges_is_one_message(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(functools.partial(Listing, directory=str(packed))) as url:
        assert run(["pack", "--check", url]) == 2
    assert "sends whole files instead of byte ranges" in capsys.readouterr().err


def test_a_short_answer_is_no_corrupt_image_of_a_tar(tmp_path: Path) -> None:
    write_tar(tmp_path / "data" / "a.tar", 0, 6)
    faults = Faults(short=1)
    with served(tmp_path / "data", faults) as url:
        images, _ = open_tars(open_store(url), ["a.tar"], "a", [])
        faults.short = 1
        assert images.load(4) == jpeg(4) and not faults.short


def test_tars_that_cannot_be_read_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    write_tar(data / "a.tar", 0, 4, labelled=False)
    whole = (data / "a.tar").read_bytes()
    out = str(tmp_path / "out")
    for name, text in (("a.tar", whole[:3000]), ("a.tar", b"nothing"), ("a.tar", bytes(10240))):
        (data / name).write_bytes(text)
        assert run(["pack", str(data), out]) == 2
        assert "a.tar" in (said := capsys.readouterr().err) or "holds no image" in said
    assert run(["pack", str(data / "b-{0..2}.tar"), out]) == 2
    assert "b-0.tar does not exist" in capsys.readouterr().err
    (data / "a.tar").write_bytes(whole)
    assert run(["pack", str(data), out, *FLAGS]) == 0
    assert "without a .cls, or with a negative one: they have no" in capsys.readouterr().out
    assert not Path(tmp_path / "q").exists()


@pytest.mark.slow  # two processes
def test_two_ranks_pack_tars_at_a_url_to_a_url_as_one_does(tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / "data" / f"{number}.tar", 10 * number, 10)
    source = f"file://{tmp_path}/data"
    assert run(["pack", source, str(tmp_path / "one"), *FLAGS]) == 0
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29653"]
    target = f"file://{tmp_path}/two"
    command = [sys.executable, *words, "-m", "lewel", "pack", source, target, *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("packed 30 images") == 1
    assert_same_pack(tmp_path / "two", tmp_path / "one")
    manifests = [json.loads((tmp_path / n / "lewel-pack.json").read_text()) for n in ("one", "two")]
    assert manifests[0] == manifests[1]


def test_credentials_are_left_out() -> None:
    url = "sftp://me:pass@host:22/data?key=abc"
    assert shown(url) == "sftp://host:22/data"
    assert without_secrets(f"no {url}, pass", url) == "no sftp://host:22/data, "
    assert shown("photos/a@b?c") == "photos/a@b?c"
    for place in ("pa::ss", ":secret", "/secret", "a/b", "se%63ret"):
        url = f"https://me:{place}@host/x"
        assert shown(url) == "https://host/x" and without_secrets(url, url) == "https://host/x"
    for same in ("hdfs:///data/x", "file:///d/o#1?2", "s3://b/run#1/x", "abfs://box@account/p"):
        assert shown(same) == same
    assert without_secrets("pass\u2100word", "https://me:pass\u2100word@host/x") == ""
    with pytest.raises(UserError, match="names 3,000,001 files"):
        expanded("a-{0..3000000}.tar")
    chained = "simplecache::zip://a.jpg::https://me:pa/s%40s@host:80/x.zip?sig=abc"
    assert shown(chained) == "simplecache::zip://a.jpg::https://host:80/x.zip"
    assert without_secrets(f"{chained} pa/s@s pa/s%40s", chained) == f"{shown(chained)}  "
    assert shown("https://[::1]:80/x@y") == "https://[::1]:80/x@y"
    assert expanded("a-{08..10}-{x,y}.tar")[:3] == ["a-08-x.tar", "a-08-y.tar", "a-09-x.tar"]


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_pack_is_no_folder_of_tars(
    packed: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Path(shutil.copytree(packed, tmp_path / "broken"))
    index = broken / "lewel-index.json"
    index.unlink() if damage == "missing" else index.write_text(index.read_text()[:50])
    for source in (str(broken), f"file://{broken}"):
        assert run(["pack", source, str(tmp_path / "out"), *FLAGS]) == 2
        assert "index" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_a_target_in_the_data_is_refused_by_path_and_by_url(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, out in (
        (str(photos), f"file://{photos}/train/out"),
        (f"file://{photos}", f"{photos}/out"),
        (f"file://{photos}", f"file://{photos.parent}//{photos.name}/out"),
    ):
        assert run(["pack", source, out, *FLAGS]) == 2
        assert "lies in the data" in capsys.readouterr().err


def test_a_url_that_cannot_be_split_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pack", "http://[bad/x", "out"]) == 2
    assert "http://[bad/x cannot be read (Invalid IPv6 URL)" in capsys.readouterr().err


def test_tars_without_labels_do_not_take_the_place_of_those_with(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name, first, labelled in (("test", 50, False), ("train", 0, True), ("val", 20, True)):
        write_tar(data / f"{name}-0.tar", first, 9, labelled)
    assert run(["pack", str(data), str(tmp_path / "out"), *FLAGS]) == 0
    found = open_data(str(tmp_path / "out"), image_size=16)
    assert found.val is not None and (len(found.unlabelled), len(found.val)) == (9, 9)
    assert found.val.describe(0).startswith("val-0.tar/")
    assert found.unlabelled.classes == ("0", "1", "2")
