"""Memory that this process may use: the machine's, or its cgroup's (SLURM, containers)."""

import os
import re
from contextlib import suppress
from pathlib import Path

Pair = tuple[int, int]


def host_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Pair:
    """Bytes of memory in all and free, at most those of this process's cgroup."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = (proc / "meminfo").read_text()
    except OSError:  # not Linux
        return total, total
    found = {name: 1024 * int(kib) for name, kib in re.findall(r"^(\w+): +(\d+) kB", lines, re.M)}
    total, free = found["MemTotal"], found.get("MemAvailable", found["MemFree"])
    for limit, used in memory_limits(proc, cgroups):
        total, free = min(total, limit), min(free, limit - used)
    return total, max(0, free)


def memory_limits(proc: Path, cgroups: Path) -> list[Pair]:
    """Limit and use of memory, in bytes, of this process's cgroups of version 1 and 2."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for _, kind, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if kind not in ("", "memory"):
            continue
        top = cgroups / kind
        folder = top / path.lstrip("/")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        names = names if kind else ("memory.max", "memory.current")
        for place in {folder, top}:  # in a container the own cgroup is mounted as the top
            try:
                limit, used = (int((place / name).read_text()) for name in names)
            except (OSError, ValueError):  # "max" is no limit
                continue
            found.append((limit, used - droppable(place)))
    return found


def droppable(cgroup: Path) -> int:
    """Bytes of files in a cgroup's memory that the system drops where memory is short."""
    with suppress(OSError):
        lines = (cgroup / "memory.stat").read_text()
        found = re.findall(r"^(?:total_)?inactive_file (\d+)$", lines, re.M)
        return max(map(int, found), default=0)  # of version 1, the total has that of its children
    return 0
