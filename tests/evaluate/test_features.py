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
from lewel.errors import RunError, UserError
from lewel.evaluate import knn, room
from lewel.evaluate.copies import fraction_of_copies
from lewel.evaluate.detections import Inference
from lewel.evaluate.features import Extractor, layout_of, refuse_not_finite, to_fast_layout
from lewel.evaluate.knn import knn_best
from lewel.evaluate.linear import held_out_losses, sweep
from lewel.evaluate.room import Room
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
    # A batch that gloo's thread frees is counted as if it stayed: the lowest of three is the peak.
    (rows, readable, peak), *others = (extract() for _ in range(3))
    peak = min(peak, *(one[2] for one in others))
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


@pytest.mark.parametrize("task", ["knn", "linear", "held out", "copies"])
def test_evaluations_need_a_fifth_more_memory_than_the_features(task: str) -> None:
    rows, labels = torch.randn(20_000, 256), torch.randint(5, (20_000,))
    queries = torch.randn(50, 256)
    settings, weights = {"epochs": 1, "batch_size": 512, "seed": 0}, torch.zeros(2, 257, 5)
    tasks = {
        "knn": lambda: knn_best(rows, labels, queries, [20], classes=5),
        "linear": lambda: sweep(rows, labels, queries, 5, **settings),
        "copies": lambda: fraction_of_copies(rows, queries),
        "held out": lambda: held_out_losses(rows, labels, torch.arange(20_000), weights),
    }
    most = 0.5 if task == "held out" else 0.2  # of all rows; a sweep holds a tenth of them out
    assert peak_bytes(tasks[task], CPU) < most * rows.nbytes


def test_more_queries_need_no_more_memory_for_their_similarities() -> None:
    """All 800 x 100,000 similarities would be 320 MB; a fifth of ImageNet's features are 2,100."""
    draws = torch.Generator().manual_seed(0)
    bank, queries = (torch.randn(n, 8, generator=draws) for n in (100_000, 800))
    labels = torch.randint(5, (100_000,), generator=draws)
    peak = peak_bytes(lambda: knn_best(bank, labels, queries, [20], classes=5), CPU)
    assert peak < 1.2 * 4 * knn.CHUNK < 160e6
    rows = torch.randn(100_000, 8, generator=draws)
    assert peak_bytes(lambda: refuse_not_finite(rows, Colours(), np.arange(1)), CPU) < 0.05e6


def test_features_are_computed_and_used_on_the_device() -> None:
    """The device "meta" has no values: whatever leaves it fails."""
    meta = torch.device("meta")
    extractor = Extractor(Wide().to(meta), 8, (0.5,) * 3, (0.5,) * 3, meta, batch_size=4)
    rows, readable = extractor.features(Colours(), np.arange(9))
    assert (rows.device, rows.shape, readable.device) == (meta, (9, CHANNELS), CPU)
    labels = torch.zeros(9, dtype=torch.long, device=meta)
    (best,) = knn_best(rows, labels, rows.clone(), [3], classes=7)
    assert (best.device, best.shape) == (meta, (9, 5))


def test_features_that_are_not_finite_are_refused() -> None:
    rows, indices = torch.zeros(600, 4), np.arange(600) + 1_000
    refuse_not_finite(rows, Colours(), indices)
    rows[300, 2], rows[599, 0] = torch.nan, torch.inf
    with pytest.raises(UserError, match="2 of 600 images are not finite, for example of 1300:"):
        refuse_not_finite(rows, Colours(), indices)


class Opened(Exception):
    """A loader of images was made."""


@pytest.mark.parametrize("kind", ["features", "detections"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_images_on_their_way_to_a_gpu_are_pinned(
    monkeypatch: pytest.MonkeyPatch, kind: str, device: str
) -> None:
    pinned: list[object] = []

    def opened(*_: object, pin_memory: bool, **settings: object) -> None:
        pinned.append(pin_memory)
        raise Opened

    monkeypatch.setattr(f"lewel.evaluate.{kind}.DataLoader", opened)
    one, colours = torch.device(device), (0.5,) * 3
    works: dict[str, Any] = {
        "features": lambda: Extractor(Wide(), 8, colours, colours, one).features(
            Colours(), np.arange(3)
        ),
        "detections": lambda: Inference(print, 8, 8, colours, colours, 8, one, 0).run(  # type: ignore[arg-type]
            Colours(),  # type: ignore[arg-type]
            print,
        ),
    }
    with pytest.raises(Opened):
        works[kind]()
    assert pinned == [device == "cuda"]


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
    to_fast_layout(backbone, CPU)
    assert layout_of(backbone) == torch.contiguous_format
    to_fast_layout(backbone, torch.device("cuda"))  # the layout of evaluations on a GPU
    assert layout_of(backbone) == torch.channels_last
    last, _ = extractor.features(Colours(), np.arange(3))
    assert layouts == [False, True]
    torch.testing.assert_close(last, plain)


def test_features_that_fit_nowhere_are_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, readable, _ = extract()
    extractor = Extractor(
        Wide(), 8, (0.5,) * 3, (0.5,) * 3, CPU, batch_size=64, room=Room(tmp_path / "results")
    )
    assert extractor.room is not None
    extractor.gathered_features(Colours(), np.arange(100))
    assert not extractor.room.elsewhere and not (tmp_path / "results").exists()
    monkeypatch.setattr(room, "free_bytes", lambda device: BYTES // 2)
    found: list[Any] = []
    every = np.arange(IMAGES)
    peak = peak_bytes(lambda: found.extend(extractor.gathered_features(Colours(), every)), CPU)
    assert extractor.room.elsewhere and peak < 0.2 * BYTES
    assert torch.equal(found[0], expected) and torch.equal(found[1], readable)
    assert list((tmp_path / "results").iterdir()) == []  # it has no name

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"need 0\.0 GB, more than is free .* \(no space left"):
        extractor.gathered_features(Colours(), every)


def test_a_streamed_bank_gives_the_same_classes_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = torch.Generator().manual_seed(0)
    bank = torch.randn(20_000, 256, generator=draws)
    labels = torch.randint(5, (20_000,), generator=draws)
    queries = bank[::97] + 0.3 * torch.randn(207, 256, generator=draws)
    mapped = Room(tmp_path).mapped(tuple(bank.shape), 4 * bank.numel())
    mapped.copy_(bank)
    expected = knn_best(bank, labels, queries, [1, 20, 200], classes=5)
    monkeypatch.setattr(knn, "CHUNK", 200_000)
    monkeypatch.setattr(knn, "STREAMED", 100)
    found: list[Tensor] = []

    def work() -> None:
        found.extend(knn_best(mapped, labels, queries, [1, 20, 200], classes=5, streamed=True))

    assert peak_bytes(work, CPU) < 0.25 * 4 * bank.numel()
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
