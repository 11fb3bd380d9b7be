"""The ranks of one srun step: their address, port and GPUs."""

import os

import torch

from lewel.data.workers import cores, usable_cores
from lewel.errors import UserError
from lewel.train.fabric import DDPStrategy, SLURMEnvironment

PORTS = range(15_000, 31_000)  # above the services', below those that systems give out


class SlurmStep(SLURMEnvironment):
    """Fabric's environment, by the variables of the step instead of those of the allocation.

    Several steps may run in one allocation: each has nodes and a port of its own.
    """

    @property
    def main_address(self) -> str:
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST")
        first = self.resolve_root_node_address(nodes or "127.0.0.1")
        return os.environ.setdefault("MASTER_ADDR", first)

    @property
    def main_port(self) -> int:
        job, step = (os.environ.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))
        numbers = [int(text) if text.isdigit() else 0 for text in (job, step)]
        port = PORTS[(101 * numbers[0] + numbers[1]) % len(PORTS)]
        return int(os.environ.setdefault("MASTER_PORT", str(port)))

    def world_size(self) -> int:
        return int(os.environ["SLURM_STEP_NUM_TASKS"])

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """`placement` has compared them with the step."""

    @staticmethod
    def _validate_srun_variables() -> None:
        """Fabric wants --ntasks-per-node, which a step need not have."""


def tasks_of_step() -> tuple[int, int] | None:
    """The tasks on each node and the nodes of this srun step; None outside of one."""
    here = os.environ
    total = int(here.get("SLURM_STEP_NUM_TASKS") or 1)  # set by srun, and not in a batch script
    if total == 1:
        return None
    nodes = int(here.get("SLURM_STEP_NUM_NODES") or 1)
    if total % nodes:
        raise UserError(
            f"srun started {total} tasks on {nodes} nodes, expected the same number on each: "
            "use srun --ntasks-per-node."
        )
    return total // nodes, nodes


def own_gpu(strategy: DDPStrategy, tasks: int) -> bool:
    """Whether srun gave each of a node's tasks one GPU (--gpus-per-task=1, --gpu-bind): use it.

    All tasks call their GPU cuda:0, where fabric expects each to see all of them.
    """
    if torch.cuda.device_count() != 1:
        return False
    there = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if there.isdigit() and int(there) < tasks:
        raise UserError(
            f"srun started {tasks} tasks on a node with {there} GPUs: use srun --ntasks-per-node "
            f"{there}, or ask for more GPUs."
        )
    strategy.parallel_devices = [torch.device("cuda", 0)] * tasks
    return True


def cores_of_task(tasks: int) -> int:
    """CPU cores of one of a node's tasks.

    srun binds each task to cores of its own, or leaves all cores of the job to all its tasks.
    """
    on_node = os.environ.get("SLURM_CPUS_ON_NODE", "")
    bound = on_node.isdigit() and usable_cores() < int(on_node)
    return usable_cores() if bound else cores(tasks)
