"""Two ranks equal one: losses, gradients, queues and statistics of all methods."""

import copy
import os
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lewel.data.sources.scenes import Scenes
from lewel.evaluate.features import AsTokens, Extractor
from lewel.methods.base import Method
from lewel.methods.registry import find_method, method_names
from lewel.nn.backbone import Backbone
from lewel.nn.norm import average_statistics, normalise_in_groups
from lewel.nn.queue import Queue
from lewel.nn.trainable import Epoch
from lewel.nn.views import Views
from lewel.ops.ranks import gather_with_gradient, local_chunk, ranks
from tests.conftest import small_backbone
from tests.methods.making import known_settings, make_method

BATCH, STEPS, IMAGES = 8, 3, 20


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
        "aligned_dim": 8 if name == "lewel_swav" else 6,
        "groups": 2,
        "queue": 10,
        "norm_groups": 2 if norm else 1,
        "prototypes": 5,
        "predictor_hidden": 6,
        "queue_from_epoch": 0,
        "images": IMAGES,
        "negatives": 7,
        "clusters": 4 if norm else 2,  # 10 of 16 are drawn as negatives, after ShuffleBN's order
        "warmup": 0,
        "region_dim": 6,
    }
    kind = find_method(name)
    known = known_settings(kind) | signature(kind.__init__).parameters.keys()
    taken = {key: value for key, value in sizes.items() if key in known}
    return make_method(kind, backbone, **{**taken, **extra}).double()


def draw(method: Method, images: torch.Generator) -> Views:
    """This rank's chunk of a batch of noise; a small crop too, where the method takes some."""
    size = 8 if isinstance(method.student.backbone, Plain) else 16
    sizes = [size] * method.about.views + [size // 2] * method.about.small_crops
    crops = [
        torch.randn(BATCH, 3, size, size, generator=images, dtype=torch.float64) for size in sizes
    ]
    corners = [torch.rand(BATCH, 2, generator=images) / 2 for _ in sizes]
    boxes = [torch.cat([corner, torch.full((BATCH, 2), 0.5)], 1) for corner in corners]
    flips = [torch.rand(BATCH, generator=images) < 0.5 for _ in sizes]
    mine = [[local_chunk(part) for part in parts] for parts in (crops, boxes, flips)]
    return Views(*mine, local_chunk(torch.randperm(IMAGES, generator=images)[:BATCH]), IMAGES)


def train(method: Method, module: nn.Module) -> dict[str, Tensor]:
    """A few steps of gradient descent on this rank's chunk -> all values to compare."""
    out: dict[str, Tensor] = {}
    images = torch.Generator().manual_seed(5)
    size = 8 if isinstance(method.student.backbone, Plain) else 16
    clean = torch.randn(IMAGES, 3, size, size, generator=images, dtype=torch.float64)

    def embed(network: Callable[[Tensor], Tensor]) -> Tensor:
        method.eval()
        with torch.no_grad():
            rows = network(clean)
        method.train()
        return rows

    torch.manual_seed(0)
    for queue in (one for one in method.modules() if isinstance(one, Queue)):
        if not queue.keys.any():  # SwAV's is used when it is full
            queue.keys.copy_(torch.randn_like(queue.keys))
    method.before_epoch(Epoch(0, embed, lambda *_: None))
    for step in range(STEPS):
        views = draw(method, images)
        torch.manual_seed(step)  # the first rank's draws are those of a single process
        if dist.is_initialized() and dist.get_rank():
            torch.manual_seed(1000 + step)
        done = module(views)
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
    **{name: {} for name in method_names()},
    "lewel_m symmetric": {"symmetric": True},
    "lewel_b separate": {"maps": "separate"},
    "lewel_m alone": {"aligned_weight": 1.0, "maps": "separate"},
    "lewel_b ema": {"statistics": "ema"},
    "densecl symmetric": {"symmetric": True},
    "pixpro instance": {"instance_weight": 0.5},
    "resim fpn": {"levels": "fpn"},
    "swav queue": {"queue": 1, "queue_from_epoch": 0},  # shorter than the ranks
}
RUNS = [(case, norm) for case in CASES for norm in (False, True) if norm or "resim" not in case]


def contiguous_only(collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective that refuses what NCCL refuses and gloo takes."""

    def checked(*arguments: Any, **options: Any) -> Any:
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        assert all(one.is_contiguous() for one in tensors), "NCCL takes contiguous tensors only"
        return collective(*arguments, **options)

    return checked


def in_pair(rank: int, folder: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for name in ("all_reduce", "broadcast", "all_gather_into_tensor", "gather"):
        setattr(dist, name, contiguous_only(getattr(dist, name)))
    results = {}
    for case, norm in RUNS:
        method = make(case.split()[0], norm, **CASES[case]).train()
        module = DistributedDataParallel(method, broadcast_buffers=False)
        results[case, norm] = train(method, module)
    results["gather"] = gathered_loss(local_chunk(ROWS))
    results["embeddings"] = embeddings()
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
    if norm and "norm_groups" not in known_settings(type(method)):  # else it has two already
        grouped = copy.deepcopy(method)  # one group per rank
        normalise_in_groups(grouped, 2)
        method = grouped
    return train(method, method)


@pytest.mark.parametrize(("case", "norm"), RUNS)
def test_two_ranks_equal_one(
    pair: list[dict[Any, dict[str, Tensor]]], case: str, norm: bool
) -> None:
    one, (first, second) = alone(case, norm), pair
    ours = first[case, norm]
    assert ours.keys() == one.keys()
    few = 3 if case == "inst_disc" else 4  # it has one convolution and one linear layer
    assert sum(name.startswith("0 gradient") for name in ours) > few
    for name, value in one.items():
        if name.startswith("state teacher") and "running" in name and "ema" in case:
            continue  # an EMA teacher's running statistics are unused
        assert torch.allclose(ours[name], value, atol=1e-10, rtol=1e-9), name
    for name, value in second[case, norm].items():
        assert torch.equal(ours[name], value), name


ROWS = torch.linspace(-1, 1, 24, dtype=torch.float64).view(8, 3)


def gathered_loss(rows: Tensor) -> dict[str, Tensor]:
    """Losses that couple the rows (B, 3) of all ranks, and the gradient as DDP averages it."""
    out = {}
    for kind in ("own rows", "all rows"):
        leaf = rows.clone().requires_grad_()
        everything = gather_with_gradient(leaf.sin())
        mine = leaf.sin() if kind == "own rows" else everything
        loss = (mine @ everything.T).square().mean()
        (gradient,) = torch.autograd.grad(loss, leaf)
        total = loss.detach().clone()
        if ranks() > 1:
            dist.all_reduce(total)
        out |= {kind: total / ranks(), f"gradient of {kind}": gradient / ranks()}
    return out


def embeddings() -> Tensor:
    """Those of 5 images, as `before_epoch` gets them."""
    torch.manual_seed(1)
    network = Plain().eval()
    tokens = AsTokens(network, lambda images: network(images).mean(1))
    extractor = Extractor(tokens, 8, (0.5,) * 3, (0.2,) * 3, torch.device("cpu"), batch_size=2)
    return extractor.features_everywhere(Scenes("train", 16, 5), np.arange(5), lambda images: None)


def test_embeddings_of_all_images_are_the_same_on_every_rank(
    pair: list[dict[Any, dict[str, Tensor]]],
) -> None:
    one = embeddings()
    assert one.shape == (5, 8) and not one.requires_grad and one.std(0).min() > 0
    for rank in pair:
        assert torch.allclose(rank["embeddings"], one, atol=1e-6)


def test_a_gather_has_the_value_and_the_gradient_of_one_rank(
    pair: list[dict[Any, dict[str, Tensor]]],
) -> None:
    one, (first, second) = gathered_loss(ROWS), pair
    for kind, value in one.items():
        parts = [first["gather"][kind], second["gather"][kind]]
        ours = torch.cat(parts) if "gradient" in kind else parts[0]
        assert torch.allclose(ours, value, atol=1e-12, rtol=1e-12), kind


def test_the_comparison_is_sensitive(
    pair: list[dict[Any, dict[str, Tensor]]],
) -> None:
    """Statistics over the whole batch, of one process without groups, differ."""
    method = make("byol", True).train()
    plain, two = train(method, method), pair[0]["byol", True]
    assert not torch.allclose(plain["0 loss"], two["0 loss"], atol=1e-6)
    assert (two["state teacher.network.head.project.norm.running_mean"] != 0).any()
