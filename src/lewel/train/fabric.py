"""lightning-fabric, imported without torchmetrics.

Fabric imports an installed torchmetrics only to compare its version, and with it SciPy and
Matplotlib: a third of a command's start-up time. A stub module replaces it during the import.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

__all__ = [
    "DDPStrategy",
    "Fabric",
    "LightningEnvironment",
    "SLURMEnvironment",
    "TorchElasticEnvironment",
]


@contextmanager
def only_its_version(name: str) -> Iterator[None]:
    """Within this context a library is a stub module with only its `__version__`."""
    try:
        stub = ModuleType(name)
        stub.__dict__["__version__"] = version(name)
    except PackageNotFoundError:
        yield
        return
    mine = sys.modules.setdefault(name, stub) is stub
    try:
        yield
    finally:
        if mine:
            del sys.modules[name]


with only_its_version("torchmetrics"):
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy
