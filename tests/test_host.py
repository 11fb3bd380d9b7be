"""Memory of the machine, and what a cgroup leaves of it."""

from pathlib import Path

import pytest
import torch

from lewel.evaluate import room
from lewel.host import host_memory


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/box\n", {"box/memory.max": "max", "box/memory.current": "5"}, (8192, 6144)),
        ("0::/box\n", {"box/memory.max": "4000", "box/memory.current": "1500"}, (4000, 2500)),
        ("0::/box\n", {"memory.max": "4000", "memory.current": "1500"}, (4000, 2500)),
        (
            "3:cpuset:/\n4:memory:/job\n",
            {
                "memory/job/memory.limit_in_bytes": "5000",
                "memory/job/memory.usage_in_bytes": "9000",
            },
            (5000, 0),
        ),
        (
            "0::/box\n",
            {
                "box/memory.max": "4000",
                "box/memory.current": "3900",
                "box/memory.stat": "anon 900\ninactive_file 1000\nactive_file 2000\n",
            },
            (4000, 1100),
        ),
        (None, {}, (8192, 6144)),
    ],
)
def test_memory_is_limited_by_cgroups(
    tmp_path: Path, own: str | None, files: dict[str, str], expected: tuple[int, int]
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:  8 kB\nMemFree:  2 kB\nMemAvailable:   6 kB\n")
    if own is not None:
        (tmp_path / "self" / "cgroup").write_text(own)
    for name, content in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert host_memory(tmp_path, tmp_path / "fs") == expected


def test_what_torch_keeps_of_a_gpu_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a training the allocator holds nearly all of the device."""
    for name, value in (("mem_get_info", (100, 1000)), ("memory_reserved", 50)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert room.free_bytes(torch.device("cuda")) == 130


def test_features_go_to_a_file_where_the_cgroup_has_no_room_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job of SLURM on a large node: the memory of the node is not the job's."""
    monkeypatch.setattr(room, "host_memory", lambda: (10**12, 4000))
    made = room.Room(tmp_path)
    assert made.make((10, 80), torch.empty(0)).shape == (10, 80) and not made.elsewhere
    assert made.make((10, 90), torch.empty(0)).shape == (10, 90) and made.elsewhere
