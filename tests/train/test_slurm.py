"""The ranks of an srun step: their address and port, their GPUs, their cores."""

import os

import pytest
import torch

from lewel.data import workers
from lewel.errors import UserError
from lewel.train import devices
from lewel.train.devices import Placement, default_workers, open_fabric, placement
from lewel.train.fabric import Fabric
from lewel.train.slurm import SlurmStep, tasks_of_step

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "16",
    "SLURM_NNODES": "4",
    "SLURM_NODELIST": "gpu[01-04]",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "3",
    "SLURM_PROCID": "11",
}


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of task 3 of 8 on the second node of a step; what fabric adds is removed."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "MASTER_")):
            monkeypatch.delenv(name)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def fake_gpus(patch: pytest.MonkeyPatch, count: int) -> None:
    patch.setattr(torch.accelerator, "is_available", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: count)
    accelerator = "lightning_fabric.accelerators.cuda"
    patch.setattr(f"{accelerator}.num_cuda_devices", lambda: count)
    patch.setattr(
        "lightning_fabric.utilities.device_parser._get_all_available_gpus",
        lambda **kinds: list(range(count)),
    )


def open_for(place: Placement) -> Fabric:
    return open_fabric(place, "cuda", "32", False)


def test_a_task_that_sees_one_gpu_uses_it(step: pytest.MonkeyPatch) -> None:
    fake_gpus(step, 1)
    fabric = open_for(placement(None, None))
    assert fabric.device == torch.device("cuda", 0)
    strategy = fabric.strategy
    strategy._set_world_ranks()  # type: ignore[attr-defined]
    assert (fabric.world_size, fabric.global_rank, fabric.local_rank) == (16, 11, 3)
    assert strategy.num_processes == 8  # type: ignore[attr-defined]


def test_a_task_that_sees_all_gpus_uses_that_of_its_number(step: pytest.MonkeyPatch) -> None:
    fake_gpus(step, 8)
    fabric = open_for(placement(None, None))
    assert fabric.device == torch.device("cuda", 3)


def test_more_tasks_than_gpus_are_refused(step: pytest.MonkeyPatch) -> None:
    fake_gpus(step, 1)
    step.setenv("SLURM_GPUS_ON_NODE", "1")
    with pytest.raises(UserError, match="8 tasks on a node with 1 GPUs: use srun"):
        open_for(placement(None, None))


def test_the_message_names_the_devices_that_are_there(step: pytest.MonkeyPatch) -> None:
    fake_gpus(step, 2)
    with pytest.raises(UserError) as raised:
        open_for(Placement(3, 1, "lewel"))
    said = str(raised.value)
    assert "You requested gpu: [0, 1, 2] But your machine only has: [0, 1]" in said
    assert "\n" not in said


def test_unequal_nodes_are_refused(step: pytest.MonkeyPatch) -> None:
    step.setenv("SLURM_STEP_NUM_TASKS", "3")
    with pytest.raises(UserError, match=r"3 tasks on 2 nodes.*--ntasks-per-node"):
        placement(None, None)


def test_two_steps_of_one_allocation_have_addresses_and_ports_of_their_own(
    step: pytest.MonkeyPatch,
) -> None:
    met = set()
    for number, nodes in (("0", "gpu[03-04]"), ("1", "gpu[03-04]"), ("2", "gpu01")):
        step.setenv("SLURM_STEP_ID", number)
        step.setenv("SLURM_STEP_NODELIST", nodes)
        here = SlurmStep()
        met.add((here.main_address, here.main_port))
        assert os.environ["MASTER_PORT"] == str(here.main_port)
        step.delenv("MASTER_ADDR")
        step.delenv("MASTER_PORT")
    assert {address for address, _ in met} == {"gpu03", "gpu01"}
    assert len({port for _, port in met}) == 3
    assert all(15_000 <= port < 31_000 for _, port in met)
    step.setenv("SLURM_JOB_ID", "4712")  # another job on the same node
    assert SlurmStep().main_port not in {port for _, port in met}
    step.setenv("MASTER_PORT", "29500")
    step.setenv("MASTER_ADDR", "login")
    assert (SlurmStep().main_address, SlurmStep().main_port) == ("login", 29500)


@pytest.mark.parametrize(
    ("mask", "on_node", "tasks", "expected"),
    [
        (12, "96", 8, 12),  # srun has bound the task to its part
        (96, "96", 8, 12),  # --cpu-bind=none: all tasks share all cores
        (12, None, 8, 1),  # nothing is known: as if shared
    ],
)
def test_readers_are_those_of_the_cores_that_a_task_has(
    step: pytest.MonkeyPatch, mask: int, on_node: str | None, tasks: int, expected: int
) -> None:
    step.setattr(workers, "usable_cores", lambda: mask)
    step.setattr("lewel.train.slurm.usable_cores", lambda: mask)
    if on_node is not None:
        step.setenv("SLURM_CPUS_ON_NODE", on_node)
    place = Placement(tasks, 2, "slurm")
    assert place.cores == expected
    assert default_workers(torch.device("cuda"), place.cores) == min(8, expected)
    # Processes of lewel or torchrun share the mask, whatever srun has bound.
    assert Placement(tasks, 1, "lewel").cores == mask // tasks
    assert devices.placement(None, None).starter == "slurm"


def test_empty_variables_are_as_none(step: pytest.MonkeyPatch) -> None:
    step.setenv("SLURM_STEP_NUM_NODES", "")
    assert tasks_of_step() == (16, 1)
    step.setenv("SLURM_STEP_NUM_TASKS", "")
    assert tasks_of_step() is None
