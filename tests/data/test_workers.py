"""Workers: their number, and that they end with their parent, quietly."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torchvision import models

from lewel.cli.main import run
from lewel.data import workers
from lewel.data.sources import images
from lewel.data.workers import UNLIMITED, cores, cpu_quota, usable_cores
from tests.data.pack.photos import make_photos
from tests.running import tiny_command

# A parent that is killed at any moment while its two workers send it batches.
KILLED = """
import os, signal, time
import torch
from torch.utils.data import DataLoader
from lewel.data.workers import leave_signals_to_the_parent

class Endless:
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.zeros(3, 64, 64, dtype=torch.uint8)

for trial in range(8):
    pid = os.fork()
    if pid == 0:
        loader = DataLoader(
            Endless(), batch_size=8, num_workers=2, worker_init_fn=leave_signals_to_the_parent
        )
        for batch in loader:
            pass
    time.sleep(0.5 + 0.07 * trial)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
time.sleep(0.5)
"""
# A worker that is busy when its parent is killed: it must not live on.
BUSY = """
import os, signal, sys, time
from torch.utils.data import DataLoader
from lewel.data.workers import leave_signals_to_the_parent

class Slow:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3)
        print("still here", file=sys.stderr, flush=True)

next(iter(DataLoader(Slow(), num_workers=1, worker_init_fn=leave_signals_to_the_parent)))
"""


@pytest.mark.parametrize("code", [KILLED, BUSY], ids=["sending", "reading"])
def test_a_worker_says_nothing_when_its_parent_is_killed(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr and "still here" not in done.stderr, done.stderr


def test_a_worker_prints_its_own_errors() -> None:
    code = (
        "from lewel.data.workers import end_with_the_parent; end_with_the_parent()\n"
        "raise ValueError('a mistake')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ValueError: a mistake" in done.stderr


# A limit of open files that the parent reaches first, and one that only its workers reach.
FEW_FILES = """
import os, resource, sys
from pathlib import Path
from lewel.cli.main import run
from tests.running import tiny_command
import lewel.data.workers as workers

in_parent, out = sys.argv[1] == "parent", Path(sys.argv[2])
limit = len(os.listdir("/proc/self/fd")) + 12
real = workers.leave_signals_to_the_parent
few = lambda many: resource.setrlimit(resource.RLIMIT_NOFILE, (many, many))
import lewel.data.views.loader as loader
loader.leave_signals_to_the_parent = lambda worker: (
    real(worker), in_parent or few(len(os.listdir("/proc/self/fd")))
)
if in_parent:
    few(limit)
sys.exit(run(tiny_command(out, "--epochs", "9", "--workers", "2")))
"""


@pytest.mark.parametrize("where", ["parent", "worker"])
def test_too_few_open_files_are_one_message(where: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FEW_FILES, where, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("The data workers need more open files than the system allows")
    assert "ulimit -n 4096" in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["knn", "embed", "pretrain", "pack"])
def test_a_killed_worker_is_one_message(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, weights = make_photos(tmp_path / "photos"), str(tmp_path / "weights.pth")
    torch.save(models.resnet18().state_dict(), weights)
    small = ["--batch-size", "4", "--workers", "1", "--image-size", "32"]
    words = {
        "knn": ["knn", weights, "--data", str(data), *small],
        "embed": ["embed", weights, str(data), *small, "--out", str(tmp_path / "f.npz")],
        "pretrain": tiny_command(tmp_path / "run", "--workers", "1", data=str(data)),
        "pack": ["pack", str(data), str(tmp_path / "packed"), "--workers", "1"],
    }[command]
    real = images.load_bytes

    def load(path: Path) -> bytearray:
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path)

    monkeypatch.setattr("lewel.data.sources.images.load_bytes", load)
    monkeypatch.setattr("lewel.data.sources.files.load_bytes", load)
    assert run(words) == 1
    said = capsys.readouterr().err
    assert said.startswith("A data worker died (DataLoader worker (pid")
    assert "fewer --workers to resume." in said and len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, UNLIMITED),
        ("0::/\n", {"cpu.max": "350000 100000"}, 4),
        ("0::/job/task\n", {"job/cpu.max": "200000 100000", "job/task/cpu.max": "max 100000"}, 2),
        (
            "5:pids:/\n4:cpu,cpuacct:/box\n",
            {"cpu/box/cpu.cfs_quota_us": "600000", "cpu/box/cpu.cfs_period_us": "100000"},
            6,
        ),
        (
            "4:cpu,cpuacct:/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            UNLIMITED,
        ),
        ("", {}, UNLIMITED),
    ],
)
def test_the_quota_of_a_container(
    tmp_path: Path, own: str, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text + "\n")
    assert cpu_quota(tmp_path / "fs", tmp_path / "own") == expected


def test_cores_are_the_mask_within_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(workers, "cpu_quota", lambda: UNLIMITED)
    assert (usable_cores(), cores(8)) == (64, 8)
    monkeypatch.setattr(workers, "cpu_quota", lambda: 6)
    assert (usable_cores(), cores(2), cores(8)) == (6, 3, 1)
