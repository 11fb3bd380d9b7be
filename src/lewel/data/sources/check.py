"""Checks of data that any command opens: images that differ, names that stay in their folder."""

import os
from collections.abc import Iterable

import torch

from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.source import Source
from lewel.errors import UserError

MOST = 1000  # images that are compared; nearly always the second one differs from the first


def refuse_identical(source: Source, name: str) -> None:
    """Raise UserError for data whose images are all the same: nothing can be learned from it."""
    first: torch.Tensor | None = None
    equal = 0
    for index in range(min(len(source), MOST)):
        try:
            image = source.read(index)
        except UnreadableImage:  # reported where the images are used
            continue
        if first is not None and not torch.equal(first, image):
            return
        first, equal = image, equal + 1
    if equal > 1:
        raise UserError(
            f"{'All' if equal == len(source) else 'The first'} {equal:,} images of {name} have the "
            f"same pixels, for example "
            f"{source.describe(0)} and {source.describe(1)}: give images that differ."
        )


def refuse_outside(names: Iterable[str], where: object) -> None:
    """Raise UserError for a path of a data set's own files that leads out of its folder."""
    for name in names:
        if os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir:
            raise UserError(
                f"{where} names {name}, which leads out of its folder: expected paths within it."
            )
