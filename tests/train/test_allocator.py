"""Freed memory is reused without page faults."""

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from lewel.train.allocator import keep_freed_memory
kept = keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(12_000_000)  # more than glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(20):
    faults()  # until the heap has found its size
print(int(kept), min(faults() for _ in range(3)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_freed_memory_is_reused() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    for more, kept in (({}, True), ({"MALLOC_ARENA_MAX": "4"}, False)):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env={**plain, **more}, capture_output=True, text=True
        )
        accepted, faults = map(int, done.stdout.split())
        assert bool(accepted) is kept, done.stderr
        assert (faults < 100) is kept  # 48 MB are 11,700 pages
