"""The methods there are: the files of this folder, and entry points of other packages.

Names are known without an import of torch, so that `lewel --help` is fast.
"""

from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lewel.errors import UserError

if TYPE_CHECKING:
    from lewel.methods.base import Method

GROUP = "lewel.methods"  # of entry points
NO_METHODS = {"__init__", "base", "registry"}


@cache
def method_names() -> tuple[str, ...]:
    """What --method takes: our own methods, then those of other packages."""
    own = {path.stem for path in Path(__file__).parent.glob("*.py")} - NO_METHODS
    return (*sorted(own), *sorted(set(_plugins()) - own))


@cache
def find_method(name: str) -> "type[Method]":
    """A method's class."""
    if name not in method_names():
        raise UserError(f"There is no method {name!r}: choose one of {', '.join(method_names())}.")
    plugin = _plugins().get(name)
    if (Path(__file__).parent / f"{name}.py").exists() or plugin is None:
        return _class_in(import_module(f"lewel.methods.{name}"), name)
    try:
        found = plugin.load()
    except Exception as error:  # another package may fail in any way
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"The method {name!r} of {plugin.value} cannot be loaded ({reason})."
        ) from None
    return _class_in(found, name)


def all_methods() -> "list[type[Method]]":
    """Every method's class; another package's that cannot be loaded is left out."""
    found = []
    for name in method_names():
        with suppress(UserError):
            found.append(find_method(name))
    return found


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _class_in(place: Any, name: str) -> "type[Method]":
    """The method that a class is, or that a module defines."""
    from lewel.methods.base import Method

    candidates = [place] if isinstance(place, type) else list(vars(place).values())
    for one in candidates:
        about = getattr(one, "about", None) if isinstance(one, type) else None
        if about is not None and issubclass(one, Method) and about.name == name:
            return one
    raise UserError(f"{place} holds no Method whose `about.name` is {name!r}.")
