"""Two ranks equal one: losses, gradients, queues and statistics of all four methods."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lewel.methods.base import Method
from lewel.methods.byol import BYOL
from lewel.methods.lewel_b import LewelB
from lewel.methods.lewel_m import LewelM
from lewel.methods.moco_v2 import MoCoV2
from lewel.nn.backbone import Backbone
from lewel.nn.norm import average_statistics, normalise_in_groups
from lewel.ops.ranks import local_chunk, ranks
from tests.conftest import small_backbone
from tests.methods.making import make_method

BATCH, STEPS = 8, 3


class Plain(Backbone):
    """A backbone without batch norm: (B, 3, 8, 8) -> (B, 4, 8)."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 4, stride=4))
        self.channels = 8

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images).flatten(2).transpose(1, 2).tanh()


def make(name: str, norm: bool, **extra: Any) -> Method:
    torch.manual_seed(3)
    backbone = small_backbone() if norm else Plain()
    sizes: dict[str, Any] = {
        "dim": 8,
        "hidden": 12,
        "norm": "batch" if norm else "none",
        "momentum": 0.9,
    }
    aligned = {"aligned_dim": 6, "groups": 2}
    queue = {"queue": 10, "norm_groups": 2 if norm else 1}
    kinds = {
        "byol": (BYOL, {}),
        "lewel_b": (LewelB, aligned),
        "moco_v2": (MoCoV2, queue),
        "lewel_m": (LewelM, aligned | queue),
    }
    kind, own = kinds[name]
    return make_method(kind, backbone, **{**sizes, **own, **extra}).double()


def train(method: Method, module: nn.Module) -> dict[str, Tensor]:
    """A few steps of gradient descent on this rank's chunk -> all values to compare."""
    out: dict[str, Tensor] = {}
    images = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        size = 16 if isinstance(method.student.backbone.net, nn.Conv2d) is False else 8
        both = [
            torch.randn(BATCH, 3, size, size, generator=images, dtype=torch.float64)
            for _ in range(2)
        ]
        torch.manual_seed(step)  # the first rank's draws are those of a single process
        if dist.is_initialized() and dist.get_rank():
            torch.manual_seed(1000 + step)
        done = module([local_chunk(view) for view in both])
        done.loss.backward()
        loss = done.loss.detach().clone()
        if ranks() > 1:
            dist.all_reduce(loss)
        out[f"{step} loss"] = loss / ranks()
        for name, parameter in method.named_parameters():
            if parameter.grad is not None:
                out[f"{step} gradient {name}"] = parameter.grad.clone()
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
        average_statistics(method)
        method.after_step(0.0, done.keys)
    return out | {f"state {name}": value.clone() for name, value in method.state_dict().items()}


CASES: dict[str, dict[str, Any]] = {
    "byol": {},
    "lewel_b": {},
    "moco_v2": {},
    "lewel_m": {},
    "lewel_m symmetric": {"symmetric": True},
    "lewel_b separate": {"maps": "separate"},
    "lewel_m alone": {"aligned_weight": 1.0, "maps": "separate"},
    "lewel_b ema": {"statistics": "ema"},
}


def in_pair(rank: int, folder: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    results = {}
    for case, extra in CASES.items():
        for norm in (False, True):
            method = make(case.split()[0], norm, **extra).train()
            module = DistributedDataParallel(method, broadcast_buffers=False)
            results[case, norm] = train(method, module)
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("pair")
    port = 20000 + os.getpid() % 20000
    mp.start_processes(in_pair, args=(str(folder), port), nprocs=2, start_method="spawn")
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def alone(case: str, norm: bool) -> dict[str, Tensor]:
    extra = CASES[case]
    method = make(case.split()[0], norm, **extra).train()
    if norm and not isinstance(method, MoCoV2 | LewelM):  # those have their two groups already
        grouped = copy.deepcopy(method)  # one group per rank
        normalise_in_groups(grouped, 2)
        method = grouped
    return train(method, method)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("norm", [False, True], ids=["without norm", "with norm"])
def test_two_ranks_equal_one(
    pair: list[dict[Any, dict[str, Tensor]]], case: str, norm: bool
) -> None:
    one, (first, second) = alone(case, norm), pair
    ours = first[case, norm]
    assert ours.keys() == one.keys()
    assert sum(name.startswith("0 gradient") for name in ours) > 4
    for name, value in one.items():
        if name.startswith("state teacher") and "running" in name and "ema" in case:
            continue  # an EMA teacher's running statistics are unused
        assert torch.allclose(ours[name], value, atol=1e-10, rtol=1e-9), name
    for name, value in second[case, norm].items():
        assert torch.equal(ours[name], value), name


def test_the_comparison_is_sensitive(
    pair: list[dict[Any, dict[str, Tensor]]],
) -> None:
    """Statistics over the whole batch, of one process without groups, differ."""
    method = make("byol", True).train()
    plain, two = train(method, method), pair[0]["byol", True]
    assert not torch.allclose(plain["0 loss"], two["0 loss"], atol=1e-6)
    assert (two["state teacher.network.head.project.norm.running_mean"] != 0).any()
