"""Imports without torch's compiler (torch._dynamo), half of a command's start-up time.

Two modules import it for one name each, and the optimisers to hide a few methods from it. It is
still imported by whatever else asks for it, and by `--compile`. Only the command line
installs this.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

COMPILER, UTILS = "torch._dynamo", "torch._dynamo.utils"
HIDDEN = "__dynamo_disable"  # where torch keeps a function that is hidden from the compiler
STEPS = "_use_grad_for_differentiable"  # decorates the steps of torch's optimisers
OPTIMIZER = "torch.optim.optimizer"
IMPORTERS = ("torchvision.ops.roi_align", "lightning_fabric.wrappers", OPTIMIZER)


def install() -> None:
    """Let torchvision, Fabric and the optimisers do without the compiler until it is used."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
        if OPTIMIZER in sys.modules:
            hide_later(sys.modules[OPTIMIZER])


class Finder(MetaPathFinder):
    """Finds the importers as usual, and has them loaded by a `LightLoader`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in IMPORTERS or COMPILER in sys.modules:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LightLoader(spec.loader)
        return spec


class LightLoader(Loader):
    """Loads a module by its own loader, with stubs in the compiler's place."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == OPTIMIZER:
            self.loader.exec_module(module)
            hide_later(module)
            decorate = getattr(module, STEPS, None)
            if decorate is not None:
                setattr(module, STEPS, lambda step: _light_step(decorate, step))
        else:
            with stubs():
                self.loader.exec_module(module)


@contextmanager
def stubs() -> Iterator[None]:
    """Within this context the compiler is a module with two names; any other one imports it."""
    mine = {COMPILER: Stub(COMPILER), UTILS: Stub(UTILS)}
    place = [str(Path(sys.modules["torch"].__path__[0]) / "_dynamo")]
    mine[COMPILER].__dict__.update(__path__=place, OptimizedModule=OptimizedModule)
    mine[UTILS].__dict__.update(is_compile_supported=is_compile_supported)
    sys.modules.update(mine)
    try:
        yield
    finally:
        remove_stubs()


class Stub(ModuleType):
    """A module that becomes the real one when another name is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by the import itself
            raise AttributeError(name)
        remove_stubs()
        return getattr(import_module(self.__name__), name)


def remove_stubs() -> None:
    """Make way for the compiler."""
    for name in (COMPILER, UTILS):
        if isinstance(sys.modules.get(name), Stub):
            del sys.modules[name]


class _Compiled(type):
    def __instancecheck__(cls, other: object) -> bool:
        compiler = sys.modules.get(COMPILER)  # without it nothing has been compiled
        return compiler is not None and isinstance(other, compiler.OptimizedModule)


class OptimizedModule(metaclass=_Compiled):
    """Stands for the compiler's class of the same name in instance checks."""


def is_compile_supported(device_type: str) -> bool:
    """The compiler's function of the same name."""
    return bool(import_module(UTILS).is_compile_supported(device_type))


def hide_later(module: ModuleType) -> None:
    """Hide an optimiser's methods from the compiler when there is one, not before."""
    for outer in vars(module.Optimizer).values():
        made_by = getattr(getattr(outer, "__code__", None), "co_filename", "")
        if made_by.endswith("_compile.py") and not hasattr(outer.__wrapped__, HIDDEN):
            setattr(outer.__wrapped__, HIDDEN, _later(outer, outer.__wrapped__))


def _later(outer: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        if COMPILER not in sys.modules:
            return inner(*given, **named)
        inner.__dict__.pop(HIDDEN, None)
        return outer(*given, **named)  # which asks the compiler

    return call


def _light_step(decorate: Callable[..., Any], step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that torch decorates once there is a compiler; before, it only sets the gradients."""
    decorated = decorate(step)

    @wraps(step)
    def call(*given: Any, **named: Any) -> Any:
        if COMPILER in sys.modules:
            return decorated(*given, **named)
        torch = sys.modules["torch"]
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(given[0].defaults["differentiable"])
            return step(*given, **named)
        finally:
            torch.set_grad_enabled(before)

    return call
