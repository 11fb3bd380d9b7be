"""The list of a large folder: written once, shared, and checked by the folders' times."""

import hashlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from lewel.data.sources import file_list as module
from lewel.data.sources.file_list import Lists
from lewel.data.sources.files import Files
from lewel.data.sources.open import open_data
from lewel.data.sources.scenes import draw_scene
from lewel.data.sources.source import digest
from lewel.errors import RunError
from tests.running import tiny_run


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTED_FROM", 5)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of four images, in folders that have not changed for a while."""
    for name in ("cat/1", "cat/2", "cat/deep/3", "cat/4", "dog/5", "dog/é", "dog/7", "dog/8"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / f"{name}.jpg").touch()
    settle(tmp_path / "photos")
    return tmp_path / "photos"


def settle(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        os.utime(folder, (1e9, 1e9))


def opened(photos: Path, lists: bool = True) -> Files:
    place = Lists.beside(photos.parent / "runs" / "one") if lists else None
    found = open_data(str(photos), image_size=32, lists=place).unlabelled
    assert isinstance(found, Files)
    return found


def described(files: Files) -> list[tuple[str, int]]:
    assert files.labels is not None
    return [(files.describe(index), int(files.labels[index])) for index in range(len(files))]


def refuse_to_scan(*given: object) -> None:
    raise AssertionError("it was scanned again")


def test_a_list_gives_what_a_scan_gives(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, first = opened(photos, lists=False), opened(photos)
    assert plain._list is None and first._list is not None and first._list.exists()
    monkeypatch.setattr(module, "scan", refuse_to_scan)
    again = opened(photos)
    names = [os.fsencode(path) for path, _ in described(plain)]
    expected = hashlib.sha256(b"".join(name + b"\0" for name in names)).hexdigest()
    for files in (plain, first, again, pickle.loads(pickle.dumps(again))):
        assert described(files) == described(plain) and files.classes == ("cat", "dog")
        assert digest(files) == expected  # as older versions computed it
    assert again.without_labels().labels is None
    assert len(pickle.dumps(again)) < 2000


@pytest.mark.parametrize("change", ["added", "removed", "new folder", "moved"])
def test_a_changed_folder_is_scanned_again(photos: Path, change: str) -> None:
    opened(photos)
    if change == "added":
        (photos / "cat" / "deep" / "new.jpg").touch()
    elif change == "removed":
        (photos / "cat" / "deep" / "3.jpg").unlink()
    elif change == "new folder":
        (photos / "cat" / "other").mkdir()
        (photos / "cat" / "other" / "x.jpg").touch()
    else:
        (photos / "cat" / "1.jpg").rename(photos / "dog" / "1.jpg")
    assert described(opened(photos)) == described(opened(photos, lists=False))


def test_a_folder_that_changed_just_now_is_not_trusted(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(photos / "dog")
    opened(photos)
    monkeypatch.setattr(module, "scan", refuse_to_scan)
    with pytest.raises(AssertionError, match="scanned again"):
        opened(photos)


def test_rescan_forgets_lists_of_before(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(photos)._list
    lists = Lists.beside(photos.parent / "runs" / "two")
    assert file is not None and file.parent == lists.place
    lists.forget(str(photos))
    assert file.exists()  # written by this process
    monkeypatch.setattr(module, "BEGAN", time.time() + 1)
    lists.forget(str(photos.parent))
    assert file.exists()
    lists.forget(str(photos))
    assert not file.exists()


@pytest.mark.parametrize("damage", [b"", b"lewel", b"x" * 100])
def test_a_damaged_list_is_written_again(photos: Path, damage: bytes) -> None:
    file = opened(photos)._list
    assert file is not None
    file.write_bytes(damage)
    assert described(opened(photos)) == described(opened(photos, lists=False))
    assert file.stat().st_size > 200


def test_a_place_that_cannot_be_written_is_no_error(photos: Path) -> None:
    (photos.parent / "runs").touch()
    assert opened(photos)._list is None and len(opened(photos)) == 8


def test_a_list_that_was_replaced_is_not_mixed_up(photos: Path) -> None:
    pickled = pickle.dumps(opened(photos))
    (photos / "cat" / "new.jpg").touch()
    opened(photos)
    with pytest.raises(RunError, match="was changed while it was used"):
        pickle.loads(pickled)


def test_one_of_several_processes_scans(photos: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from lewel.data.sources import file_list, scan\n"
        "file_list.LISTED_FROM = 5\n"
        "write = file_list._write\n"
        "def slow(*given):\n"
        "    print('writes', flush=True)\n"
        "    time.sleep(1)\n"
        "    write(*given)\n"
        "file_list._write = slow\n"
        "lists = file_list.Lists.beside(Path(sys.argv[2]))\n"
        "print(len(file_list.find_images(sys.argv[1], ('',), lists).names))\n"
    )
    command = [sys.executable, "-c", code, str(photos), str(photos.parent / "runs" / "one")]
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=120)[0].split() for process in several]
    assert sorted(said) == [["8"], ["8"], ["writes", "8"]]


def test_a_run_resumes_by_its_list_and_rescans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, run = tmp_path / "photos", tmp_path / "runs" / "one"
    photos.mkdir()
    for index in range(12):
        pixels = draw_scene(0, "val", index, 24).image
        Image.fromarray(pixels).save(photos / f"{index:02d}.png")
    settle(photos)
    assert tiny_run(run, "--epochs", "1", data=str(photos)) == 0
    (file,) = (tmp_path / "runs" / ".file-lists").glob("*.files")
    with monkeypatch.context() as patched:
        patched.setattr(module, "scan", refuse_to_scan)
        assert tiny_run(run, "--epochs", "2", data=str(photos)) == 0
        assert "resumed at step 1" in capsys.readouterr().out
    (photos / "12.png").write_bytes((photos / "11.png").read_bytes())
    settle(photos)  # as on a file system that keeps no times
    assert tiny_run(run, "--epochs", "3", data=str(photos)) == 0
    monkeypatch.setattr(module, "BEGAN", time.time() + 1)
    assert tiny_run(run, "--epochs", "4", "--rescan", data=str(photos)) == 2
    assert "(12 then, 13 now)" in capsys.readouterr().err
    assert file.exists()
