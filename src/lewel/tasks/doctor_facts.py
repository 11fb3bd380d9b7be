"""What `lewel doctor` reads of a machine: versions, devices, limits. Nothing is assessed here."""

import os
import platform
import re
import shutil
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

import torch
from packaging.requirements import Requirement

from lewel.data.workers import cores
from lewel.errors import UserError
from lewel.host import host_memory
from lewel.train.devices import check_cpu_precision, default_workers

SHOWN = ("torch", "torchvision", "timm", "lightning-fabric", "numpy", "pillow")
Pair = tuple[int, int]
FOR_DEVELOPERS = {"dev", "docs"}  # extras that no command needs


class Device(NamedTuple):
    """A device that can train; `memory` and `free` in bytes."""

    name: str  # cpu, cuda:0, mps
    model: str
    memory: int
    free: int
    bf16: bool = False
    tf32: bool = False
    error: str = ""  # why it cannot be opened


@dataclass(frozen=True)
class Facts:
    """A machine and its installation; without host name, user name and paths."""

    python: str
    system: str
    versions: dict[str, str]  # of the packages in SHOWN, and lewel's own
    unmet: dict[str, str]  # requirement -> the version that is installed, or ""
    extras: dict[str, tuple[str, ...]]  # optional group -> its packages that are missing
    cuda: str  # the CUDA or ROCm version that torch was built for, or ""
    cuda_problem: str  # torch's warning when it looked for GPUs
    driver: bool  # whether an NVIDIA driver is loaded
    visible: str | None  # CUDA_VISIBLE_DEVICES
    devices: tuple[Device, ...]  # the CPU first
    cpus: int  # of the machine
    cores: int  # that this process may use
    load: float  # running processes, mean of a minute
    threads: int  # that torch computes with
    omp: str | None  # OMP_NUM_THREADS
    workers: int  # data workers of a run, by default
    shm: int | None  # free bytes of /dev/shm; None where there is none
    open_files: int
    open_files_hard: int  # that `ulimit -n` can raise it to
    disk: int  # free bytes at the current folder

    @property
    def gpus(self) -> tuple[Device, ...]:
        """All devices but the CPU."""
        return self.devices[1:]


def gather() -> Facts:
    """Read everything; no measurement, about the time of importing torch once more."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gpus = accelerators()
    problem = next((str(one.message) for one in seen if "CUDA" in str(one.message)), "")
    soft, hard = open_files_limits()
    unmet, extras = requirements(requires("lewel") or [])
    kind = torch.device(gpus[0].name if gpus else "cpu")
    shm = Path("/dev/shm")
    return Facts(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions={name: version(name) for name in ("lewel", *SHOWN) if installed(name)},
        unmet=unmet,
        extras=extras,
        cuda=torch.version.cuda or getattr(torch.version, "hip", None) or "",
        cuda_problem=problem.split("\n")[0],
        driver=Path("/proc/driver/nvidia/version").exists(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        devices=(cpu(), *gpus),
        cpus=os.cpu_count() or 1,
        cores=cores(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        threads=torch.get_num_threads(),
        omp=os.environ.get("OMP_NUM_THREADS"),
        workers=default_workers(kind, cores(max(1, len(gpus)))),
        shm=shutil.disk_usage(shm).free if shm.exists() else None,
        open_files=soft,
        open_files_hard=hard,
        disk=shutil.disk_usage(".").free,
    )


def processor() -> str:
    """The name of the CPU, if the system provides it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu() -> Device:
    """The CPU with the memory that this process may use; bf16 is tried in a process of its own."""
    total, free = host_memory()
    try:
        check_cpu_precision("bf16-mixed")
        bf16 = True
    except UserError:
        bf16 = False
    return Device("cpu", processor(), total, free, bf16)


def accelerators() -> list[Device]:
    """All GPUs that torch sees."""
    if torch.cuda.is_available():
        return [cuda_device(index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        memory = torch.mps.recommended_max_memory()
        return [Device("mps", processor(), memory, memory - torch.mps.driver_allocated_memory())]
    return []


def cuda_device(index: int) -> Device:
    """A GPU of NVIDIA or AMD."""
    name = f"cuda:{index}"
    try:
        found = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:  # in use by another process alone, or broken
        return Device(name, "GPU", 0, 0, error=str(error).split("\n")[0])
    amd = getattr(torch.version, "hip", None) is not None
    ampere = found.major >= 8
    return Device(name, found.name, total, free, bf16=amd or ampere, tf32=ampere and not amd)


def open_files_limits() -> Pair:
    """The limits of open files of this process: now, and what it can be raised to."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return tuple(2**31 if one < 0 else one for one in (soft, hard))  # type: ignore[return-value]


def installed(name: str) -> bool:
    """Whether a package is installed."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def requirements(lines: list[str]) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Of a package's requirements: those that are not met, and what each extra lacks."""
    unmet: dict[str, str] = {}
    extras: dict[str, list[str]] = {}
    for one in map(Requirement, lines):
        has = version(one.name) if installed(one.name) else ""
        met = bool(has) and one.specifier.contains(has, prereleases=True)
        names = re.findall(r"extra == ['\"]([\w-]+)['\"]", str(one.marker or ""))
        for extra in set(names) - FOR_DEVELOPERS:
            extras.setdefault(extra, []).extend([] if met else [one.name])
        if not names and not met and (one.marker is None or one.marker.evaluate()):
            unmet[f"{one.name}{one.specifier}"] = has
    return unmet, {name: tuple(missing) for name, missing in sorted(extras.items())}
