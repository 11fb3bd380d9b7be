"""Large buffers of which a step changes a few rows, so that only these are kept to undo it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

from torch import Tensor, nn


class Change(NamedTuple):
    """Rows of a tensor (all of it where `places` is None) as they were before a change."""

    tensor: Tensor
    places: Tensor | None
    old: Tensor


_changes: list[Change] | None = None


class RowBuffers(nn.Module):
    """A module whose `large` buffers `after_step` changes by `write_rows` alone, or not at all."""

    large: ClassVar[tuple[str, ...]]  # names of buffers


def write_rows(tensor: Tensor, places: Tensor, rows: Tensor) -> None:
    """Replace rows (B, ...) of a buffer, in its own precision."""
    if _changes is not None:
        _changes.append(Change(tensor, places, tensor[places]))
    tensor[places] = rows.to(tensor.dtype)


def write_all(tensor: Tensor, values: Tensor) -> None:
    """Replace all values of a tensor, which may be a trained parameter."""
    if _changes is not None:
        _changes.append(Change(tensor, None, tensor.detach().clone()))
    tensor.copy_(values)


@contextmanager
def recorded_changes() -> Iterator[list[Change]]:
    """Within it, what `write_rows` and `write_all` replace is appended to the list."""
    global _changes
    before, _changes = _changes, []
    try:
        yield _changes
    finally:
        _changes = before


def large_buffers(module: nn.Module) -> list[Tensor]:
    """The buffers of a model whose changes are recorded row by row."""
    found = (one for one in module.modules() if isinstance(one, RowBuffers))
    return [one.get_buffer(name) for one in found for name in one.large]
