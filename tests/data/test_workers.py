"""Workers end with their parent, quietly."""

import subprocess
import sys

import pytest

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
