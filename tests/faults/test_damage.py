"""Full disks, damaged checkpoints, corrupt images, non-finite values, collapse."""

import errno
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.errors import RunError
from lewel.losses import cosine
from lewel.methods import base, lewel_b
from lewel.train import checkpoint
from lewel.train.checkpoint import Checkpoints, find_damage
from lewel.train.monitor import CollapseWatch, CorruptImages
from tests.running import metrics, tiny_command, tiny_run


def test_a_full_disk_leaves_the_previous_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Checkpoints(tmp_path, keep=2)
    store.save(1, {"step": 1, "weights": torch.ones(3)})
    real = torch.save

    def fill(state: object, path: Path) -> None:
        buffer = io.BytesIO()
        real(state, buffer)
        Path(path).write_bytes(buffer.getvalue()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", fill)
    with pytest.raises(RunError, match=r"No space left on device.*step-000000001.pt is intact"):
        store.save(2, {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.pt"]
    state = store.load(print)
    assert state is not None
    assert state["step"] == 1


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    for step in range(5):
        store.save(step, {"step": step})
    assert [path.name for path in store.paths()] == ["step-000000003.pt", "step-000000004.pt"]


def test_a_damaged_checkpoint_is_reported_and_skipped(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        store.save(step, {"step": step, "weights": torch.randn(1000)})
    newest = store.paths()[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    store.paths()[-2].write_bytes(b"")
    said: list[str] = []
    state = store.load(said.append)
    assert state is not None
    assert state["step"] == 1
    assert len(said) == 2
    assert "step-000000003.pt is damaged" in said[0]
    assert [path.name for path in store.paths()] == ["step-000000001.pt"]
    store.paths()[0].write_bytes(b"nothing")
    with pytest.raises(RunError, match="No checkpoint"):
        store.load(said.append)


def test_a_changed_byte_anywhere_in_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, keep=1).save(1, {"step": 1, "weights": torch.randn(2000)})
    content = path.read_bytes()
    assert find_damage(path) is None
    last = len(content) - 1
    places = {*range(0, last, 97), *range(last - 300, last + 1), int(0.999 * last)}
    for place in sorted(places):
        for bit in (0x01, 0x20, 0xFF):
            changed = bytearray(content)
            changed[place] ^= bit
            path.write_bytes(changed)
            assert find_damage(path), f"byte {place} of {last + 1}"
    for length in (0, 1, 21, last // 2, *range(last - 60, last + 1)):
        path.write_bytes(content[:length])
        assert find_damage(path), f"cut after {length} of {last + 1} bytes"


def test_a_checkpoint_without_a_checksum_still_loads(tmp_path: Path) -> None:
    torch.save({"step": 3, "weights": torch.randn(2000)}, tmp_path / "step-000000003.pt")
    state = Checkpoints(tmp_path, 1).load(print)
    assert state is not None and state["step"] == 3


def test_a_checkpoint_of_another_step_or_kind_is_set_aside(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=9)
    for step in (1, 2):
        store.save(step, {"step": step})
    shutil.copy(store.path(1), store.path(7))
    torch.save({"weights": 1}, store.path(8))
    torch.save([1], store.path(9))
    said: list[str] = []
    state = store.load(said.append)
    assert state is not None and state["step"] == 2 == store.newest
    assert len(said) == 3 and all("not what its name says" in line for line in said)
    assert len(list(tmp_path.glob("*.damaged"))) == 3


@pytest.mark.parametrize("flags", [("--seed", "5"), ("--method", "byol")])
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny_run(tmp_path / "run", "--epochs", "1") == 0
    assert tiny_run(tmp_path / "other", "--epochs", "1", *flags) == 0
    last = "checkpoints/step-000000004.pt"
    before = (tmp_path / "run" / "backbone.safetensors").read_bytes()
    shutil.copy(tmp_path / "other" / last, tmp_path / "run" / last)
    assert tiny_run(tmp_path / "run", "--epochs", "1") == 2
    assert f"holds another run ({flags[0].strip('-')}: " in capsys.readouterr().err
    assert (tmp_path / "run" / "backbone.safetensors").read_bytes() == before


def test_a_checkpoint_never_runs_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path(tmp_path / "owned").write_text, ("x",))

    torch.save({"step": 1, "payload": Evil()}, tmp_path / "step-000000001.pt")
    with pytest.raises(RunError, match="No checkpoint"):
        Checkpoints(tmp_path, 1).load(print)
    assert not (tmp_path / "owned").exists()


def test_a_loss_that_is_not_finite_stops_before_anything_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = 0

    def breaks(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        loss = cosine.normalised_mse(prediction, target)
        return loss * float("nan") if calls > 20 else loss  # four calls a step: at step 6

    monkeypatch.setattr(lewel_b, "normalised_mse", breaks)
    assert tiny_run(tmp_path / "run", "--epochs", "4") == 1
    assert "stopped being finite" in capsys.readouterr().err
    kept = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert sorted(kept) == ["step-000000000.pt", "step-000000004.pt"]
    assert all(np.isfinite(line.get("loss", 0)) for line in metrics(tmp_path / "run"))


def photos(folder: Path, good: int, corrupt: int) -> Path:
    folder.mkdir()
    for index in range(good):
        pixels = np.random.default_rng(index).integers(0, 255, (20, 24, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:03d}.jpg")
    for index in range(corrupt):
        (folder / f"bad{index:03d}.jpg").write_bytes(b"\xff\xd8\xff no picture")
    return folder


@pytest.mark.parametrize("workers", ["0", "2"])
def test_corrupt_images_are_replaced_counted_and_listed(
    tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photos(tmp_path / "photos", 118, 2)
    flags = ("--epochs", "2", "--workers", workers, "--limit", "200")
    assert tiny_run(tmp_path / "run", *flags, data=str(data)) == 0
    lines = (tmp_path / "run" / "corrupt_images.jsonl").read_text().splitlines()
    assert {json.loads(line)["image"] for line in lines} == {"bad000.jpg", "bad001.jpg"}
    assert len(lines) == 2
    assert "2 corrupt images" in capsys.readouterr().out
    assert [line["step"] for line in metrics(tmp_path / "run")] == list(range(31))


def test_too_many_corrupt_images_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photos(tmp_path / "photos", 100, 20)
    flags = ("--epochs", "2", "--limit", "200")
    assert tiny_run(tmp_path / "run", *flags, data=str(data)) == 1
    said = capsys.readouterr().err
    assert "are corrupt, more than 5%" in said
    assert "corrupt_images.jsonl: repair them and run the same command to resume" in said
    step = metrics(tmp_path / "run")[-1]["step"]
    assert step > 0 and (tmp_path / "run" / "checkpoints" / f"step-{step:09d}.pt").exists()
    assert tiny_run(tmp_path / "run", *flags, data=str(data)) == 1  # nothing is repaired
    listed = (tmp_path / "run" / "corrupt_images.jsonl").read_text().splitlines()
    assert metrics(tmp_path / "run")[-1]["step"] <= step + 1
    for number in range(20):
        shutil.copy(data / f"{number:03d}.jpg", data / f"bad{number:03d}.jpg")
    capsys.readouterr()
    assert tiny_run(tmp_path / "run", *flags, data=str(data)) == 0
    assert f"{len(listed)} images that were corrupt can be read again" in capsys.readouterr().out
    assert (tmp_path / "run" / "corrupt_images.jsonl").read_text() == ""
    assert [line["step"] for line in metrics(tmp_path / "run")] == list(range(31))


def test_the_list_of_corrupt_images_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "corrupt_images.jsonl"
    first = CorruptImages(path, 1000, 1000)
    first.add([(3, "a\tb\n.jpg", "empty file")])
    first.check(500, torch.device("cpu"))
    again = CorruptImages(path, 1000, 1000)
    again.add([(3, "a\tb\n.jpg", "empty file"), (4, "c.jpg", "truncated")])
    again.check(600, torch.device("cpu"))
    assert again.corrupt == {3, 4}
    assert len(path.read_text().splitlines()) == 2
    path.write_text(path.read_text() + '{"index": 7, "ima')  # killed while writing
    assert CorruptImages(path, 1000, 1000).corrupt == {3, 4}
    assert len(path.read_text().splitlines()) == 2
    # Where one image stops a run, it may have been repaired since.
    assert CorruptImages(path, 1000, 1000, allowed=0.0).corrupt == set() and not path.exists()


def test_collapse_is_reported_once() -> None:
    said: list[str] = []
    watch = CollapseWatch(said.append)
    watch.check([{"embedding_std": 0.8, "teacher_embedding_std": 0.02}], progress=0.1)
    assert said == []
    watch.check([{"embedding_std": 0.05, "teacher_embedding_std": 0.9}], progress=0.1)
    watch.check([{"embedding_std": 0.04, "teacher_embedding_std": 0.9}], progress=0.1)
    assert len(said) == 1
    assert "nearly the same embedding" in said[0]
    watch.check([{"embedding_std": 0.9, "teacher_embedding_std": 0.9}], progress=0.5)
    watch.check([{"embedding_std": 0.9, "teacher_embedding_std": 0.02}], progress=0.5)
    assert len(said) == 2


def test_collapse_is_detected_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(base, "embedding_std", lambda embeddings: torch.tensor(0.01))
    assert tiny_run(tmp_path / "run", "--epochs", "2") == 0
    assert capsys.readouterr().out.count("Collapse: all images") == 1


def test_weights_that_are_not_finite_are_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, calls = lewel_b.LewelB.after_step, 0

    def breaks(self: lewel_b.LewelB, *args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 8:  # the loss of this last step of an epoch was still fine
            self.student.backbone.net.bn1.running_mean.fill_(float("inf"))
        return real(self, *args)

    monkeypatch.setattr(lewel_b.LewelB, "after_step", breaks)
    assert tiny_run(tmp_path / "run", "--epochs", "4") == 1
    assert "stopped being finite" in capsys.readouterr().err
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000000000.pt", "step-000000004.pt"]


def test_a_full_disk_gives_one_message(tmp_path: Path) -> None:
    """A limit on the size of files, for real: some write of the run must fail."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({400_000}, {400_000}));"
        f"from lewel.cli.main import run; sys.exit(run({tiny_command(tmp_path / 'run')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "could not be written" in done.stderr
    assert not list((tmp_path / "run").rglob("*.lewel-partial"))


def test_the_limit_of_corrupt_images_holds_for_small_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photos(tmp_path / "photos", 46, 44)
    flags = ("--epochs", "2", "--limit", "200", "--workers", "1")
    assert tiny_run(tmp_path / "run", *flags, data=str(data)) == 1
    assert "are corrupt" in capsys.readouterr().err


def test_a_corrupt_validation_image_does_not_stop_the_run(tmp_path: Path) -> None:
    for split, count in (("train", 20), ("val", 10)):
        for name in ("cat", "dog"):
            (tmp_path / "data" / split).mkdir(parents=True, exist_ok=True)
            photos(tmp_path / "data" / split / name, count, 1)
    for path in list((tmp_path / "data" / "val").rglob("*.jpg")):
        path.rename(path.with_stem(f"val-{path.stem}"))  # no copies of training images
    flags = ("--epochs", "1", "--knn.every", "1", "--workers", "1", "--knn.neighbours", "3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lewel.train.monitor.CORRUPT_LIMIT", 0.5)
        assert tiny_run(tmp_path / "run", *flags, data=str(tmp_path / "data")) == 0
    assert "knn" in metrics(tmp_path / "run")[-1]


def test_a_file_system_without_locks_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", no_locks)
    assert tiny_run(tmp_path / "run", "--epochs", "1") == 0
    assert "cannot be locked (No locks available)" in capsys.readouterr().out
