"""The arithmetic of a run: TF32 by default on CUDA, exact where 32 is given, said in its files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lewel.config.pretrain import PretrainConfig
from lewel.ops.precision import exact_products
from lewel.progress import plain_console
from lewel.tasks.pretrain import pretrain, with_precision
from lewel.train.devices import chosen_precision, set_arithmetic
from tests.running import tiny_run

OLD = Path(__file__).parents[1] / "fixtures" / "version_0_1" / "interrupted"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    cudnn, products = torch.backends.cudnn, torch.get_float32_matmul_precision()
    before = cudnn.allow_tf32, cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(products)
    cudnn.allow_tf32, cudnn.benchmark = before


@pytest.mark.parametrize(
    ("given", "accelerator", "cuda", "chosen"),
    [
        ("auto", "auto", True, "tf32"),
        ("auto", "cuda", True, "tf32"),
        ("auto", "cpu", True, "32"),
        ("auto", "auto", False, "32"),
        ("32", "cuda", True, "32"),
        ("16-mixed", "cuda", True, "16-mixed"),
    ],
)
def test_auto_is_tf32_where_cuda_is_used(
    monkeypatch: pytest.MonkeyPatch, given: str, accelerator: str, cuda: bool, chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert chosen_precision(given, accelerator) == chosen


def test_32_is_exact_and_tf32_is_not() -> None:
    set_arithmetic("tf32", fixed_shapes=True)
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32 and torch.backends.cudnn.benchmark
    with exact_products():
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "high"
    set_arithmetic("32", fixed_shapes=False)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cudnn.benchmark


def test_a_run_of_version_0_1_keeps_its_32_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config, cpu = PretrainConfig(), torch.device("cpu")
    assert config.precision == "auto"
    assert with_precision(config, cpu, OLD).precision == "32"
    assert with_precision(config, cpu, tmp_path / "new").precision == "tf32"
    exact = PretrainConfig(precision="32")
    assert with_precision(exact, cpu, tmp_path / "new").precision == "32"


def test_a_run_of_16_bits_resumes_in_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the flag, `auto` stands for the run's own precision, in the arithmetic too."""

    class Found(Exception):
        pass

    def look(config: PretrainConfig, opened: object, place: object, fabric: Any, *_: Any) -> None:
        raise Found(config.precision, type(fabric._precision).__name__)

    before = PretrainConfig(precision="bf16-mixed")
    monkeypatch.setattr("lewel.tasks.pretrain.settings_before", lambda folder: (before, None))
    monkeypatch.setattr("lewel.tasks.pretrain.Parts", look)
    for given, expected in (
        ("auto", ("bf16-mixed", "MixedPrecision")),
        ("32", ("32", "Precision")),
    ):
        config = PretrainConfig(data="scenes", precision=given, accelerator="cpu", limit=8)
        with pytest.raises(Found) as found:
            pretrain(config, tmp_path / "run", plain_console())
        assert found.value.args == expected


def test_config_and_card_name_the_arithmetic(tmp_path: Path) -> None:
    assert tiny_run(tmp_path / "run", "--epochs", "1", "--limit", "8") == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    for told in (config, card):
        assert (told["precision"], told["cudnn_benchmark"]) == ("32", True)
    assert torch.backends.cudnn.benchmark and not torch.backends.cudnn.allow_tf32
    flags = ("--epochs", "2", "--limit", "8", "--no-cudnn-benchmark")
    assert tiny_run(tmp_path / "run", *flags) == 0  # resumes: it is no part of the identity
    assert not torch.backends.cudnn.benchmark
