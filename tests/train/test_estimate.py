"""Estimates of memory and time against the allocator and the clock."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lewel.methods.base import Method
from lewel.methods.byol import BYOL
from lewel.methods.lewel_b import LewelB
from lewel.methods.lewel_m import LewelM
from lewel.methods.moco_v2 import MoCoV2
from lewel.nn.backbone import ResNetBackbone, build_resnet
from lewel.optim.lars import LARS
from lewel.train import estimate
from lewel.train.estimate import (
    estimate_memory,
    estimate_seconds,
    is_out_of_memory,
    largest_batch,
    out_of_memory_message,
)
from tests.methods.making import make_method

SIZES = {"dim": 32, "hidden": 64}
QUEUE = {"queue": 128}
MADE: dict[str, Callable[[], Method]] = {
    "lewel_b": lambda: make_method(LewelB, **SIZES, aligned_dim=32),
    "byol": lambda: make_method(BYOL, **SIZES),
    "lewel_m": lambda: make_method(LewelM, **SIZES, **QUEUE, norm_groups=1),
    "lewel_m in groups": lambda: make_method(LewelM, **SIZES, **QUEUE, norm_groups=8),
    "lewel_m, symmetric": lambda: make_method(
        LewelM, **SIZES, **QUEUE, norm_groups=4, symmetric=True
    ),
    "moco_v2": lambda: make_method(MoCoV2, **SIZES, **QUEUE, norm_groups=1),
    "moco_v2 in groups": lambda: make_method(MoCoV2, **SIZES, **QUEUE, norm_groups=8),
}
every_method = pytest.mark.parametrize("name", MADE)


def views(batch: int, size: int = 32) -> list[torch.Tensor]:
    return [torch.randn(batch, 3, size, size) for _ in range(2)]


def saved_bytes(method: Method, batch: int) -> int:
    """What autograd keeps of a real forward, each storage once and without the weights."""
    own = {x.untyped_storage().data_ptr() for x in (*method.parameters(), *method.buffers())}
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no later one has its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        method.train()(views(batch))
    return sum(storage.nbytes() for place, storage in kept.items() if place not in own)


def allocated_bytes(method: Method, batch: int) -> int:
    """The most that the allocator gave out during a real forward and backward."""
    method.train()(views(batch)).loss.backward()  # the gradients exist, as when accumulating
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        images = views(batch)
        method(images).loss.backward()
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@every_method
def test_estimated_activations_match_the_allocator(name: str) -> None:
    method = MADE[name]()
    estimated = estimate_memory(method, 1, 32, 32).activations
    # Some CPUs' convolutions take a workspace in backward, 12 % of MoCo's activations at this size.
    assert estimated == pytest.approx(allocated_bytes(method, 32), rel=0.13)
    assert saved_bytes(method, 32) < estimated < 1.6 * saved_bytes(method, 32)


@pytest.mark.parametrize(
    ("slots", "make"),
    [
        (1, lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9)),
        (1, lambda weights: LARS(weights, lr=0.1)),
        (2, lambda weights: torch.optim.AdamW(weights, lr=0.1)),
    ],
)
@pytest.mark.parametrize("name", ["lewel_b", "lewel_m in groups"])
def test_estimated_weights_are_all_that_remains_after_a_step(
    name: str, slots: int, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    method = MADE[name]()
    optimizer = make([p for p in method.parameters() if p.requires_grad])
    method.train()(views(16)).loss.backward()
    optimizer.step()
    kept = [*method.parameters(), *method.buffers()]
    kept += [p.grad for p in method.parameters() if p.grad is not None]
    kept += [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim  # without AdamW's step counters
    ]
    assert estimate_memory(method, slots, 32, 16).weights == sum(x.nbytes for x in kept)


@every_method
def test_an_estimate_changes_nothing(name: str) -> None:
    method = MADE[name]().eval()
    before, random = copy.deepcopy(method.state_dict()), torch.get_rng_state()
    modes = [module.training for module in method.modules()]
    estimate_memory(method, 1, 32, 16)
    estimate_seconds(method, 32, True, torch.device("cpu"), 16)
    assert torch.equal(random, torch.get_rng_state())
    assert modes == [module.training for module in method.modules()]
    assert all(p.grad is None and p.is_contiguous() for p in method.parameters())
    for key, value in method.state_dict().items():
        assert value.device.type == "cpu" and torch.equal(value, before[key])


THREADS = """
import os, torch
from lewel.train.estimate import estimate_memory
from lewel.methods.byol import BYOL
from tests.methods.making import make_method
estimate_memory(make_method(BYOL, dim=32, hidden=64), 1, 32, 16)
torch.ones((), requires_grad=True).backward()
names = [open(f"/proc/self/task/{one}/comm").read() for one in os.listdir("/proc/self/task")]
print(sum("autograd" in name for name in names) - torch.accelerator.device_count())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_an_estimate_leaves_no_threads_for_devices_that_are_not_there() -> None:
    """In a forked process these threads race in torch, which aborts ("Invalid thread pool!")."""
    ran = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    assert ran.stdout.strip() == "0", ran.stderr


@every_method
def test_memory_grows_with_the_batch_and_halves_in_16_bits(name: str) -> None:
    method = MADE[name]()
    small, large = (estimate_memory(method, 1, 32, batch) for batch in (16, 32))
    assert small.weights == large.weights
    assert large.activations > 1.99 * small.activations  # batch norm keeps a little of its own
    assert large.total == large.weights + large.activations
    half = estimate_memory(method, 1, 32, 32, half=True)
    assert half == (large.weights, large.activations // 2)


def test_a_step_larger_than_any_memory_is_estimated() -> None:
    method = LewelB(ResNetBackbone(build_resnet("resnet50")))
    assert 60e9 < estimate_memory(method, 1, 224, 512).total < 130e9


def test_other_ranks_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    method = MADE["lewel_m in groups"]()
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(MADE["lewel_b"]())
    alone = [estimate_memory(m, 1, 32, 16) for m in (method, synced)]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda *group: 2)
    available = dist.is_available
    assert [estimate_memory(m, 1, 32, 16) for m in (method, synced)] == alone
    assert dist.is_available is available


@pytest.mark.parametrize(
    ("name", "batch", "multiple", "half"),
    [
        ("byol", 120, 1, False),
        ("lewel_m", 3, 1, False),
        ("lewel_m", 48, 1, False),
        ("lewel_m", 192, 3, True),
        ("moco_v2 in groups", 120, 8, False),
    ],
)
def test_the_largest_batch_fits_and_the_next_does_not(
    name: str, batch: int, multiple: int, half: bool
) -> None:
    method = MADE[name]()
    exactly = estimate_memory(method, 1, 32, batch, half).total
    for available, expected in ((exactly, batch), (exactly - 1, batch - multiple)):
        assert largest_batch(method, 1, 32, available, 240, half, multiple) == expected
    assert largest_batch(method, 1, 32, exactly, batch - 1, half, multiple) == batch - multiple


def test_the_largest_batch_is_0_if_nothing_fits() -> None:
    method = MADE["moco_v2 in groups"]()
    assert largest_batch(method, 1, 32, 1000, 64) == 0
    assert largest_batch(method, 1, 32, 10**12, 15) == 0  # 8 groups of 2 are 16
    assert largest_batch(method, 1, 32, 10**12, 31) == 24
    assert largest_batch(method, 1, 32, 10**12, 64, multiple_of=5) == 40


def test_seconds_are_timed_on_few_images_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    method = MADE["moco_v2 in groups"]()
    method.register_forward_pre_hook(lambda _, given: seen.append(len(given[0][0])))
    cpu, ticks = torch.device("cpu"), iter(range(1000))

    def clock() -> float:
        return next(ticks)  # every step takes 1 s

    assert estimate_seconds(method, 32, False, cpu, 64, clock=clock) == 4.0
    assert seen == [16] * 4
    assert estimate_seconds(method, 32, False, cpu, 64, at_most=30, clock=clock) == pytest.approx(
        64 / 24
    )
    seen.clear()
    estimate_seconds(method, 32, False, cpu, 16, clock=clock, long_enough=7.0)
    assert len(seen) == 1 + 7
    monkeypatch.setattr(estimate, "LONG", 0.5)
    seen.clear()
    assert estimate_seconds(method, 32, False, cpu, 16, clock=clock) == 1.0
    assert seen == [16]


def message(name: str = "moco_v2 in groups", **given: int) -> str:
    numbers = {"batch_size": 96, "accumulate": 1, "device_memory": 10**9, **given}
    return out_of_memory_message(
        MADE[name](), optimizer_slots=1, image_size=32, device="cuda:0", **numbers
    )


def memory_for(batch: int, name: str = "moco_v2 in groups") -> int:
    """A device on which a batch just fits."""
    return int(estimate_memory(MADE[name](), 1, 32, batch).total / estimate.USABLE) + 1


def test_the_message_gives_flags_that_fit() -> None:
    text = message(device_memory=memory_for(40))
    assert text.startswith("cuda:0 ran out of memory: 96 images of 32 px at a time need about 0.0")
    assert "about 40 would fit" in text
    # 96 in 3 parts is 32; 2 parts of 48 do not fit
    assert (
        "--accumulate 3 (the same batch, 32 at a time) or --batch-size 40 with another --out."
        in text
    )
    assert text.count(".") == 1 + len(re.findall(r"\d\.\d", text))


def test_the_message_counts_ranks_and_micro_batches() -> None:
    text = message(batch_size=384, accumulate=2, ranks=2, device_memory=memory_for(40))
    assert "96 images" in text
    assert (
        "--accumulate 6 (the same batch, 32 at a time) or --batch-size 160 with another --out."
        in text
    )


def test_no_parts_are_proposed_where_none_divide() -> None:
    text = message("byol", batch_size=47, device_memory=memory_for(40, "byol"))
    assert text.endswith("about 40 would fit: use --batch-size 40 with another --out.")


def test_half_is_proposed_where_other_processes_use_the_device() -> None:
    assert (
        "--accumulate 2 (the same batch, 48 at a time) or --batch-size 48 with another --out."
        in message()
    )


def test_a_device_that_is_too_small_is_reported() -> None:
    text = message(device_memory=1000)
    assert text.endswith("fewer do not fit either: use a smaller --image-size or --backbone.")


def test_running_out_of_memory_is_distinguished_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert not is_out_of_memory(RuntimeError("DataLoader worker (pid 1) is killed"))
    assert not is_out_of_memory(KeyboardInterrupt())
