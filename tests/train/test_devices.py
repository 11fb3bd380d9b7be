"""Devices: warnings that are of no use, and precisions that a GPU does not have."""

import os
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lewel.errors import UserError
from lewel.train import devices
from lewel.train.devices import Placement, open_fabric, placement, quieten
from tests.train.test_slurm import fake_gpus

STREAM = "The AccumulateGrad node's stream does not match the stream of the node that produced"


def ddp_step() -> None:
    """A step of DDP whose gradient has other strides than its bucket."""
    model = nn.Conv2d(4, 4, 3)
    wrapped = DistributedDataParallel(model)
    model.to(memory_format=torch.channels_last)
    wrapped(torch.randn(2, 4, 8, 8)).sum().backward()


def test_warnings_of_ddp_are_quiet(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(22000 + os.getpid() % 20000))
    dist.init_process_group("gloo", rank=0, world_size=1)
    torch.set_warn_always(True)  # torch warns once a process
    try:
        ddp_step()
        assert any("bucket view strides" in str(one.message) for one in recwarn)
        recwarn.clear()
        with warnings.catch_warnings():
            quieten()
            ddp_step()
            warnings.warn(f"{STREAM} the incoming gradient.", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
    finally:
        torch.set_warn_always(False)
        dist.destroy_process_group()
    assert [str(one.message) for one in recwarn] == ["something else"]


def test_a_trial_of_bf16_that_hangs_is_a_cpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "TRIAL", 0.01)
    with pytest.raises(UserError, match="bf16-mixed does not work on this CPU"):
        devices.check_cpu_precision("bf16-mixed")


def test_bf16_needs_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 1)
    one = Placement(1, 1, "lewel")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    with pytest.raises(UserError, match=r"Tesla V100 has 7\.0: use --precision 16-mixed"):
        open_fabric(one, "cuda", "bf16-mixed", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert open_fabric(one, "cuda", "bf16-mixed", False).device.type == "cuda"


def test_ranks_that_nothing_has_started_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would train by itself, on the whole batch."""
    monkeypatch.setenv("RANK", "1")
    assert placement(None, None).ranks == 1  # left over
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="RANK is 1 and WORLD_SIZE 2, but neither torchrun"):
        placement(None, None)


@pytest.mark.parametrize(("given", "waits"), [(0.5, 30), (90, 90), (1e9, 7 * 24 * 60)])
def test_collectives_wait_as_long_as_ranks_are_waited_for(given: float, waits: float) -> None:
    fabric = open_fabric(Placement(2, 1, "lewel"), "cpu", "32", False, given)
    assert fabric.strategy._timeout == timedelta(minutes=waits)  # type: ignore[attr-defined]
