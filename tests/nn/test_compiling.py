"""A compiled backbone is the same network; where nothing can be compiled, all goes on."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lewel.backbones import build_backbone
from lewel.cli import run
from lewel.nn.compiling import compile_backbones
from tests.running import metrics, tiny_command


@pytest.mark.slow
def test_a_compiled_backbone_is_the_same_network() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(build_backbone("resnet10", "small", 8, 32)).eval()
    images, names = torch.rand(2, 3, 32, 32), list(network.state_dict())
    plain = network(images)
    said: list[str] = []
    if not compile_backbones(network, torch.device("cpu"), said.append):
        assert "torch.compile does not work here" in said[0]
        pytest.skip(said[0])
    torch.testing.assert_close(network(images), plain, rtol=1e-4, atol=1e-5)
    assert list(network.state_dict()) == names


def test_a_run_goes_on_where_nothing_can_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", broken)
    assert run([*tiny_command(tmp_path / "run"), "--compile"]) == 0
    assert "so nothing is compiled: No working C++ compiler found" in " ".join(
        capsys.readouterr().out.split()
    )
    assert metrics(tmp_path / "run")[-1]["step"] > 0
