"""A compiled backbone is the same network; where compilation fails, training continues."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lewel.cli.main import run
from lewel.interop.backbones import build_backbone
from lewel.nn.compile import _trial, compile_backbones
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


def test_a_run_continues_where_nothing_can_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", broken)
    assert run([*tiny_command(tmp_path / "run", "--epochs", "1"), "--compile"]) == 0
    assert "so nothing is compiled: No working C++ compiler found" in " ".join(
        capsys.readouterr().out.split()
    )
    assert metrics(tmp_path / "run")[-1]["step"] > 0


def test_a_backbone_that_cannot_be_compiled_gives_one_message(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("the compiler died")

    compiled = torch.compile

    def breaking(function: Any) -> Any:
        return compiled(function, backend="eager" if function is _trial else broken)

    monkeypatch.setattr(torch, "compile", breaking)
    for _ in range(2):  # each run in a process reports it
        torch.compiler.reset()
        network = nn.Sequential(build_backbone("resnet10", "small", 8, 32)).eval()
        images, said = torch.rand(2, 3, 32, 32), list[str]()
        plain = network(images)
        assert compile_backbones(network, torch.device("cpu"), said.append)
        for _ in range(2):
            torch.testing.assert_close(network(images), plain)
        assert len(said) == 1
        assert said[0].endswith("runs uncompiled: RuntimeError: the compiler died")
    assert "Traceback" not in capfd.readouterr().err
