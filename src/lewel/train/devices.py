"""Devices: number of processes, their launcher, and the Fabric they run on."""

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import torch

from lewel.data.workers import cores
from lewel.errors import UserError
from lewel.train.fabric import (
    DDPStrategy,
    Fabric,
    LightningEnvironment,
    TorchElasticEnvironment,
)
from lewel.train.slurm import SlurmStep, cores_of_task, own_gpu, tasks_of_step

HALF = ("bf16-mixed", "16-mixed")
COLLECTIVE, LONGEST = 30.0, 7 * 24 * 60.0  # minutes that a collective waits: usually, and at most
TRIAL = 300.0  # seconds for importing torch and one product, on a machine however busy
Starter = Literal["lewel", "torchrun", "slurm"]
ENVIRONMENTS: dict[Starter, Callable[[], Any]] = {
    "lewel": LightningEnvironment,
    "torchrun": TorchElasticEnvironment,
    "slurm": SlurmStep,
}


class Placement(NamedTuple):
    """How many processes train together, and what starts them."""

    devices: int  # on each node
    nodes: int
    starter: Starter

    @property
    def ranks(self) -> int:
        return self.devices * self.nodes

    @property
    def cores(self) -> int:
        """CPU cores for each device."""
        return cores_of_task(self.devices) if self.starter == "slurm" else cores(self.devices)


def placement(devices: int | None, nodes: int | None) -> Placement:
    """The requested placement, or the one that torchrun or srun has started."""
    here = os.environ
    if "TORCHELASTIC_RUN_ID" in here:
        local, total = int(here["LOCAL_WORLD_SIZE"]), int(here["WORLD_SIZE"])
        found = Placement(local, total // local, "torchrun")
    elif (tasks := tasks_of_step()) is not None:
        found = Placement(*tasks, "slurm")
    else:
        alone = (nodes or 1) == 1 or {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= here.keys()
        if not alone:
            raise UserError(
                f"--nodes {nodes}: start it on every node by srun or torchrun, or set MASTER_ADDR, "
                "MASTER_PORT and NODE_RANK there."
            )
        if here.get("RANK", "").isdecimal() and here.get("WORLD_SIZE", "1") not in ("", "1"):
            raise UserError(
                f"RANK is {here['RANK']} and WORLD_SIZE {here['WORLD_SIZE']}, but neither torchrun "
                "nor srun has started this process: start it by torchrun, or unset both."
            )
        return Placement(devices or 1, nodes or 1, "lewel")
    wanted = Placement(devices or found.devices, nodes or found.nodes, found.starter)
    if wanted != found:
        raise UserError(
            f"--devices {wanted.devices} --nodes {wanted.nodes} do not fit what {found.starter} "
            f"started, {found.devices} processes on each of {found.nodes} nodes: leave them out."
        )
    return found


def open_fabric(
    place: Placement,
    accelerator: str,
    precision: str,
    sync_batch_norm: bool,
    rank_timeout: float = COLLECTIVE,
) -> Fabric:
    """Fabric for these devices; its processes are not started yet.

    A collective waits as long as a rank is waited for (minutes), half an hour at least.
    """
    on_cpu = accelerator == "cpu" or not torch.accelerator.is_available()
    if precision in HALF and on_cpu:
        check_cpu_precision(precision)
    quieten()
    strategy: Any = "auto"
    if place.ranks > 1:
        # Statistics are averaged over the ranks; rank 0's must not replace the others'.
        start: Literal["spawn", "popen"] = "spawn" if place.starter == "lewel" else "popen"
        patience = timedelta(minutes=min(max(rank_timeout, COLLECTIVE), LONGEST))
        strategy = DDPStrategy(broadcast_buffers=False, start_method=start, timeout=patience)
    devices = place.devices
    if place.starter == "slurm" and devices > 1 and not on_cpu and own_gpu(strategy, devices):
        devices = 1
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=place.nodes,
            strategy=strategy,
            precision=precision if precision in HALF else "32-true",  # type: ignore[arg-type]
            plugins=[ENVIRONMENTS[place.starter]()],
        )
    except Exception as error:  # fabric raises many types for a missing device
        reason = " ".join(str(error).split())  # its second line names the devices that there are
        raise UserError(
            f"--accelerator {accelerator} --devices {place.devices} cannot be used: {reason}"
        ) from None
    # Autocast decides what is computed in 16 bits: rounded inputs would move boxes by whole pixels.
    fabric._precision.convert_input = unchanged  # type: ignore[method-assign]
    if precision == "bf16-mixed" and fabric.device.type == "cuda":
        check_gpu_precision(fabric.device)
    if sync_batch_norm and place.ranks > 1 and fabric.device.type != "cuda":
        raise UserError(
            "--sync-batch-norm works on GPUs only: leave it out, or use --devices 1, where batch "
            "norm uses the whole batch anyway."
        )
    return fabric


def chosen_precision(precision: str, accelerator: str) -> str:
    """What `auto` stands for: tf32 where CUDA is used, else 32."""
    if precision != "auto":
        return precision
    return "tf32" if accelerator in ("auto", "cuda") and torch.cuda.is_available() else "32"


def set_arithmetic(precision: str, fixed_shapes: bool) -> None:
    """Set this process's float32 products and convolutions on CUDA.

    TF32 in all but `32`, which is exact. With fixed shapes cuDNN times its algorithms once.
    """
    exact = precision == "32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cudnn.benchmark = fixed_shapes


def unchanged(data: Any) -> Any:
    """The inputs of a model as they are; a function that processes can send each other."""
    return data


def quieten() -> None:
    """Silence Fabric's start-up logs and warnings that are of no use to users."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # Its replacement would still copy rank 0's buffers, and older torch does not have it.
    warnings.filterwarnings("ignore", message=".*`broadcast_buffers` is deprecated")
    # Of DDP, on every rank: 1 x 1 convolutions have two equal layouts, and fabric wraps the model
    # in a stream of its own.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")


def check_gpu_precision(device: torch.device) -> None:
    """GPUs before Ampere have no bfloat16: torch would emulate it slowly."""
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise UserError(
            f"--precision bf16-mixed needs a GPU of compute capability 8.0 or more, "
            f"{torch.cuda.get_device_name(device)} has {major}.{minor}: use --precision 16-mixed."
        )


def check_cpu_precision(precision: str) -> None:
    """16 bits on a CPU: float16 has no autocast there, bfloat16 crashes on some CPUs."""
    if precision == "16-mixed":
        raise UserError("--precision 16-mixed needs a GPU: use --precision 32 on this machine.")
    trial = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); (x @ x).sum().item()"
    words = [sys.executable, "-c", trial]
    try:
        failed = subprocess.run(words, capture_output=True, timeout=TRIAL).returncode
    except subprocess.TimeoutExpired:
        failed = 1
    if failed:
        raise UserError("--precision bf16-mixed does not work on this CPU: use --precision 32.")


def default_workers(device: torch.device, mine: int) -> int:
    """Data workers of a device with so many cores: up to 8 for a GPU; a quarter of the cores for a
    CPU, which also trains."""
    return min(8, mine) if device.type == "cuda" else mine // 4
