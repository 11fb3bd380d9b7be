"""Features at ImageNet size: held once, by rank 0 alone, and evaluated in bounded memory."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from lewel.bench.memory import peak_bytes
from lewel.data.sources.images import UnreadableImage
from lewel.evaluate.features import Extractor, layout_of
from lewel.evaluate.knn import knn_best
from lewel.evaluate.linear import sweep
from lewel.ops import ranks
from tests.conftest import small_backbone

CPU = torch.device("cpu")
IMAGES, CHANNELS = 6_001, 512  # large beside the batches that are on their way
BYTES = 4 * IMAGES * CHANNELS


class Colours:
    """Images of one colour each; the last one is corrupt."""

    name, classes = "colours", None
    labels = np.arange(IMAGES) % 7

    def __len__(self) -> int:
        return IMAGES

    def read(self, index: int) -> Tensor:
        if index == IMAGES - 1:
            raise UnreadableImage("corrupt")
        colour = torch.tensor([index % 256, index // 256, 7], dtype=torch.uint8)
        return colour.view(3, 1, 1).expand(3, 8, 8).contiguous()

    def describe(self, index: int) -> str:
        return str(index)


class Wide(nn.Module):
    """Images (B, 3, S, S) -> their mean colour in many channels, (B, 1, C)."""

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, CHANNELS, generator=draws))

    def forward(self, images: Tensor) -> Tensor:
        return (images.mean((2, 3)) @ self.weight)[:, None]


def extract() -> tuple[Tensor, Tensor, int]:
    """Features, which are readable, and the peak of the bytes that were allocated."""
    extractor = Extractor(Wide(), 8, (0.5,) * 3, (0.5,) * 3, CPU, batch_size=64)
    found: list[Any] = []
    every = np.arange(IMAGES)
    peak = peak_bytes(lambda: found.extend(extractor.gathered_features(Colours(), every)), CPU)
    return found[0], found[1], peak


def in_pair(rank: int, folder: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    ranks.BEAT = 0.0
    dist.init_process_group("gloo", rank=rank, world_size=2)
    rows, readable, peak = extract()
    seen: list[int] = []

    def work(beat: Any) -> str:
        beat()
        seen.append(rank)
        return f"of rank {rank}"

    out = {"rows": rows, "readable": readable, "peak": peak}
    out |= {"said": ranks.on_rank_0(work, CPU), "seen": seen}
    own = torch.arange(6).view(3, 2) + 10 * rank
    dist.all_gather = None  # type: ignore[assignment]  # it would copy once more
    out |= {"gathered": ranks.gather(own), "flags": ranks.gather(own > 3)}
    torch.save(out, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_only_rank_0_holds_the_features_and_works_on_them(tmp_path: Path) -> None:
    port = 20000 + os.getpid() % 20000
    mp.start_processes(in_pair, args=(str(tmp_path), port), nprocs=2, start_method="spawn")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    rows, readable, peak = extract()
    assert torch.equal(first["rows"], rows) and second["rows"].shape == (0, CHANNELS)
    for one in (first, second):
        assert torch.equal(one["readable"], readable)
        assert one["said"] == "of rank 0"
        assert one["gathered"].flatten().tolist() == [*range(6), *range(10, 16)]
        assert one["flags"].flatten().tolist() == [False] * 4 + [True] * 8
    assert (first["seen"], second["seen"]) == ([0], [])
    assert readable.tolist() == [True] * (IMAGES - 1) + [False]
    assert max(first["peak"], peak) < 1.2 * BYTES
    assert second["peak"] < 0.2 * BYTES


@pytest.mark.parametrize("task", ["knn", "linear"])
def test_evaluations_need_a_fifth_more_memory_than_the_features(task: str) -> None:
    rows, labels = torch.randn(20_000, 256), torch.randint(5, (20_000,))
    queries = torch.randn(50, 256)
    settings = {"epochs": 1, "batch_size": 512, "seed": 0}
    tasks = {
        "knn": lambda: knn_best(rows, labels, queries, [20], classes=5),
        "linear": lambda: sweep(rows, labels, queries, 5, **settings),
    }
    assert peak_bytes(tasks[task], CPU) < 0.2 * rows.nbytes


def test_images_are_in_the_layout_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = small_backbone().eval()
    layouts = []
    real = backbone.forward

    def spy(images: Tensor) -> Tensor:
        layouts.append(images.is_contiguous(memory_format=torch.channels_last))
        return real(images)

    monkeypatch.setattr(backbone, "forward", spy)
    extractor = Extractor(backbone, 16, (0.5,) * 3, (0.5,) * 3, CPU)
    plain, _ = extractor.features(Colours(), np.arange(3))
    backbone.to(memory_format=torch.channels_last)
    assert layout_of(backbone) == torch.channels_last
    last, _ = extractor.features(Colours(), np.arange(3))
    assert layouts == [False, True]
    torch.testing.assert_close(last, plain)
