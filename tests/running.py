"""A real but tiny training run, as a command line and as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lewel.cli.main import run
from lewel.config.methods import taken
from lewel.methods.registry import find_method, method_names

TINY = {
    "--backbone": "resnet10",
    "--stem": "small",
    "--width": "8",
    "--image-size": "16",
    "--batch-size": "8",
    "--head.hidden": "16",
    "--head.dim": "8",
    "--head.aligned-dim": "8",
    "--head.groups": "2",
    "--optim.lr": "0.2",
    "--optim.lr-batch-size": "8",
    "--optim.warmup-epochs": "0",
    "--knn.every": "0",
    "--workers": "0",
    "--log-every": "3",
    "--accelerator": "cpu",
    "--limit": "32",
}


def tiny_flags(method: str) -> dict[str, str]:
    """The flags of a tiny run that a method takes."""
    shared = taken(find_method(method)) if method in method_names() else set()
    keys = {flag: flag[2:].replace("-", "_") for flag in TINY}
    return {f: v for f, v in TINY.items() if not keys[f].startswith("head.") or keys[f] in shared}


def tiny_command(out: Path, *flags: str, data: str = "scenes") -> list[str]:
    """The words of a command; flags given replace those of the tiny run."""
    method = flags[flags.index("--method") + 1] if "--method" in flags else "lewel_b"
    chosen = tiny_flags(method)
    defaults = [word for pair in chosen.items() if pair[0] not in flags for word in pair]
    recipe = [] if "--recipe" in flags else ["--recipe", "paper"]
    return ["pretrain", data, "--out", str(out), *recipe, *defaults, *flags]


def tiny_run(out: Path, *flags: str, data: str = "scenes") -> int:
    """Train in this process on one thread, as `start_process` does; the exit code."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over other numbers of threads differ in their last bits
    try:
        return run(tiny_command(out, *flags, data=data))
    finally:
        torch.set_num_threads(threads)


def trained_once(folders: pytest.TempPathFactory, name: str, *flags: str) -> Path:
    """The run folder of a tiny run of one epoch, for a fixture."""
    out = folders.mktemp(name) / "run"
    assert tiny_run(out, "--epochs", "1", *flags) == 0
    return out


def start_process(out: Path, *flags: str, data: str = "scenes") -> "subprocess.Popen[str]":
    """Train in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lewel", *tiny_command(out, *flags, data=data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def as_torchrun(monkeypatch: pytest.MonkeyPatch, local: int, total: int) -> None:
    """The environment of one of the processes that torchrun starts."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    monkeypatch.setenv("WORLD_SIZE", str(total))


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
