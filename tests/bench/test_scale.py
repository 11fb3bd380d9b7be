"""`lewel bench scale`: growth exponents, and throughput by processes."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from lewel.bench.scale import Curve, variants
from lewel.bench.timing import interleaved, ratio
from lewel.bench.workload import Workload
from lewel.cli.main import run

TINY = [
    *("--backbone", "resnet10", "--width", "8", "--image-size", "32"),
    *("--batch-size", "4", "--hidden", "16"),
]


def test_growth_is_the_exponent_of_a_power_law() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    assert Curve("batch", "", values, [3 * x**1.7 for x in values]).growth == pytest.approx(1.7)
    assert Curve("workers", "", [0.0, 1.0], [1.0, 2.0]).growth is None  # 0 has no logarithm


def test_one_size_varies_at_a_time() -> None:
    work = Workload(batch_size=8, image_size=64, dim=16)
    assert list(variants("image_size", work)) == [64, 96, 128, 192]
    assert list(variants("batch", work)) == [2, 4, 8, 16]
    assert list(variants("maps", work)) == [4, 8, 16, 32]
    assert {w.image_size for w in variants("batch", work).values()} == {64}


def test_curves_from_the_command_line(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    words = ["bench", "scale", "positions", "maps", "workers", *TINY, "--dim", "16"]
    assert run([*words, "--rounds", "1", "--threads", "1", "--out", str(tmp_path)]) == 0
    torch.set_num_threads(threads)
    result = json.loads((tmp_path / "scale.json").read_text())
    assert [curve["axis"] for curve in result["curves"]] == [
        *("positions", "maps", "maps", "workers")
    ]
    assert all(y > 0 for curve in result["curves"] for y in curve["measured"])
    with Image.open(tmp_path / "scale.png") as picture:
        assert picture.format == "PNG"


def test_rounds_are_interleaved_and_ratios_are_per_round() -> None:
    class Silent:
        def tick(self, doing: str = "") -> None:
            pass

    calls: list[str] = []
    steps = {name: (lambda name=name: calls.append(name)) for name in ("a", "b", "c")}
    times = interleaved(steps, 9, torch.device("cpu"), Silent(), warmup=1)  # type: ignore[arg-type]
    rounds = [calls[start : start + 3] for start in range(0, 30, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    before_b = {calls[at - 1] for at in range(1, 30) if calls[at] == "b"}
    assert before_b >= {"a", "c"}  # no entry always follows the same one
    assert all(len(taken) == 9 for taken in times.values())
    assert ratio({"a": [2.0, 20.0, 3.0], "b": [1.0, 10.0, 1.0]}, "a", "b") == 2
