"""Evaluations on two ranks whose disks differ: rank 0 decides what is known and where to resume."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lewel.cli.main import run
from tests.data.pack.photos import make_photos
from tests.running import tiny_run

FLAGS = ("--epochs", "2", "--batch-size", "16", "--workers", "0", "--accelerator", "cpu")


def linear(folder: Path, out: str) -> list[str]:
    words = ["linear", str(folder / "run"), "--data", str(folder / "photos"), *FLAGS]
    return [*words, "--out", str(folder / out)]


def start(folder: Path, rank: str, port: int, data: str) -> "subprocess.Popen[str]":
    """A task of srun with a disk of its own, begun in a folder of its own."""
    step = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    words = linear(folder, f"disk{rank}")
    words[words.index("--data") + 1] = data
    return subprocess.Popen(
        [sys.executable, "-m", "lewel", *words],
        cwd=folder / f"node{rank}" if data == "photos" else folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **step},
    )


def on_two_disks(folder: Path, port: int, data: str | None = None) -> tuple[list[int], list[str]]:
    """Exit codes and outputs of both ranks."""
    data = data or str(folder / "photos")
    tasks = [start(folder, rank, port, data) for rank in ("0", "1")]
    try:
        said = [task.communicate(timeout=120)[0] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    return [task.returncode for task in tasks], said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run; disk0 holds its evaluation by `linear` and the evaluation's last checkpoint."""
    folder = tmp_path_factory.mktemp("disks")
    make_photos(folder / "photos", train=48, val=9)
    assert tiny_run(folder / "run", "--epochs", "1") == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lewel.tasks.evaluator.Evaluator.remove_checkpoints", lambda self: None)
        assert run(linear(folder, "disk0")) == 0
    return folder


def test_what_rank_0_knows_no_rank_computes(place: Path) -> None:
    codes, said = on_two_disks(place, 24000 + os.getpid() % 20000)
    assert codes == [0, 0], said
    assert "cached in" in said[0]
    assert "cached in" not in said[1]
    assert not (place / "disk1").exists()


def test_ranks_without_rank_0s_checkpoint_are_one_message(place: Path) -> None:
    result = place / "disk0" / "results" / "linear.json"
    kept = result.read_text()
    result.unlink()
    codes, said = on_two_disks(place, 25000 + os.getpid() % 20000)
    result.write_text(kept)
    assert codes == [1, 1], said
    assert "rank 1: The first rank resumes at step 6, but its checkpoint is not in" in said[1]
    assert "share" in said[1]
    assert not any("Traceback" in text for text in said)
    assert len(said[1].strip().splitlines()) == 1


def test_copies_of_the_images_on_each_node_are_the_same_images(place: Path) -> None:
    """Copies have times of their own; other images are refused."""
    for node in ("node0", "node1"):
        shutil.copytree(place / "photos", place / node / "photos", copy_function=shutil.copyfile)
    for file in (place / "node1").rglob("*.*"):
        os.utime(file, (1, 1))
    codes, said = on_two_disks(place, 26000 + os.getpid() % 20000, "photos")
    assert codes == [0, 0], said
    next((place / "node1").rglob("*.*")).unlink()
    codes, said = on_two_disks(place, 27000 + os.getpid() % 20000, "photos")
    assert 0 not in codes and "do not have the same images or weights" in said[0], said


def test_the_folder_of_a_training_is_named_by_rank_0(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name depends on the times of files, which differ between copies."""
    monkeypatch.setattr("lewel.tasks.training.gather_objects", lambda mine: ["learning-0", *mine])
    assert run(linear(place, "named")) == 0
    assert (place / "named" / "results" / "learning-0" / "metrics.jsonl").exists()
