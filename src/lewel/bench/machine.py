"""The machine of a benchmark: hardware, versions and load."""

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lewel.tasks.doctor_facts import processor

PACKAGES = ("lewel", "torch", "torchvision", "timm", "lightly", "pillow", "numpy")
BUSY = 0.5  # load per core at the start above which the numbers count as taken under load


def describe_machine(threads: int) -> dict[str, Any]:
    """Machine, versions, threads and load, for JSON."""
    import torch

    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": cores,
        "threads": threads,
        "clock": "processor" if threads == 1 and not torch.cuda.is_available() else "wall",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": found,
        "load_at_start": round(load, 2),
        "under_load": load / cores > BUSY,
    }


def machine_line(machine: dict[str, Any]) -> str:
    """The machine and its versions in one line."""
    packages = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    busy = (
        f"; other processes kept the machine busy (load {machine['load_at_start']} at the start)"
        if machine["under_load"]
        else ""
    )
    timed = "CPU" if machine["clock"] == "processor" else "wall"
    return (
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, "
        f"threads: {machine['threads']} ({timed} time), {machine['device']}, "
        f"Python {machine['python']}, "
        f"{packages}{busy}."
    )
