"""lightning-fabric, imported without torchmetrics.

Fabric imports torchmetrics, where that is installed, to compare its version, and with it SciPy and
Matplotlib: a third of a command's start. A stand-in answers the question while fabric is imported.
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
    """A library that is imported in here is an empty module that knows its version."""
    try:
        stand_in = ModuleType(name)
        stand_in.__dict__["__version__"] = version(name)
    except PackageNotFoundError:
        yield
        return
    mine = sys.modules.setdefault(name, stand_in) is stand_in
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
