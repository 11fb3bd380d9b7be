"""A run starts without torch's compiler, which works all the same once it is used."""

import subprocess
import sys
from pathlib import Path

from tests.running import tiny_command

RUN = """
import sys
from lewel.lazy_compiler import install
install()
from lewel.cli.main import run
assert run(sys.argv[1:]) == 0
assert "torch._dynamo" not in sys.modules, "the compiler was imported"
"""
LATER = """
import sys
import lewel
from lewel.lazy_compiler import Finder, install
assert not any(isinstance(finder, Finder) for finder in sys.meta_path), "import lewel patches torch"
install()
import torch
import lewel.train.fabric, lewel.data.sources.images
from lightning_fabric.wrappers import _unwrap_compiled
from torchvision.ops import roi_align
assert "torch._dynamo" not in sys.modules, "the compiler was imported"
plain = torch.nn.Linear(2, 3)
assert _unwrap_compiled(plain) == (plain, None)
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
plain(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
assert "torch._dynamo" not in sys.modules, "the compiler was imported"
assert torch.is_grad_enabled()
compiled = torch.compile(plain, backend="eager")
assert compiled(torch.ones(1, 2)).shape == (1, 3)
assert type(compiled).__module__.startswith("torch._dynamo")
assert _unwrap_compiled(compiled)[0] is plain
compiled(torch.ones(1, 2)).sum().backward()
before = plain.weight.detach().clone()
optimizer.step()
assert torch.allclose(plain.weight, before - 0.1)
optimizer.zero_grad()
assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.1
assert isinstance(sys.modules["torchvision.ops.roi_align"].is_compile_supported("cpu"), bool)
boxes = [torch.tensor([[0.0, 0.0, 2.0, 2.0]])]
assert roi_align(torch.ones(1, 1, 4, 4), boxes, 2).shape == (1, 1, 2, 2)
"""


def test_the_compiler_is_imported_when_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATER], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_run_does_without_the_compiler(tmp_path: Path) -> None:
    words = tiny_command(tmp_path / "run", "--epochs", "1", "--limit", "16", "--optim.name", "sgd")
    command = [sys.executable, "-c", RUN, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
