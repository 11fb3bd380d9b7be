"""torchvision's data sets by name, downloaded if they are not in the data folder."""

import errno
import os
from importlib.util import find_spec
from typing import Final, NamedTuple

from lewel.data.sources.arrays import Arrays
from lewel.data.sources.catalogue import TABLE
from lewel.data.sources.downloads import (
    VARIABLE,
    data_root,
    locked,
    not_writable,
    reason_of,
    staged,
)
from lewel.data.sources.files import Files
from lewel.errors import UserError

NAMES: Final = tuple(TABLE)


class Splits(NamedTuple):
    """A named data set, opened."""

    unlabelled: Files | Arrays | None  # the pre-training split, if it is not train
    train: Files | Arrays
    val: Files | Arrays | None  # disjoint from train; None if there is no official split


def open_named(name: str, notes: list[str]) -> Splits:
    """The data set of a name in `NAMES`, downloaded if its files are missing."""
    root = data_root()
    splits = _open_if_there(name, root)
    if splits is None:
        with locked(root, name):
            # Another process may have fetched it while this one waited.
            splits = _open_if_there(name, root) or _fetch(name, root)
    unlabelled, train, val = splits
    if val is not None and val.classes != train.classes:
        raise UserError(
            f"{name} in {root} has {len(train.classes or ()):,} classes for training and "
            f"{len(val.classes or ()):,} for validation: give both the same class folders."
        )
    row = TABLE[name]
    if unlabelled is not None:
        notes.append(f"{name}: pre-training uses its {len(unlabelled):,} {row.unlabelled} images.")
    if val is not None:
        notes.append(
            f"{name}: its {len(train):,} {row.train} images are used for training, its "
            f"{len(val):,} {row.val} images for validation."
        )
    return splits


def _open(name: str, root: str, download: bool = False) -> Splits:
    row = TABLE[name]

    def opened(splits: str) -> Files | Arrays:
        sets = [row.dataset(root, split, download) for split in splits.split("+")]
        return row.source(name, root, splits, sets)

    return Splits(
        opened(row.unlabelled) if row.unlabelled else None,
        opened(row.train),
        opened(row.val) if row.val else None,
    )


def _open_if_there(name: str, root: str) -> Splits | None:
    try:
        return _open(name, root)
    except ImportError as error:
        raise _needs(name, error.name or str(error)) from error
    except Exception:  # torchvision raises many types for missing or damaged files
        return None


def _fetch(name: str, root: str) -> Splits:
    """Download and unpack a data set, then open it."""
    row = TABLE[name]
    if row.scipy and find_spec("scipy") is None:  # checked before gigabytes are downloaded
        raise _needs(name, "scipy")
    try:
        with staged(root, name, row.archives) as temp:
            _open(name, temp, download=True)
        return _open(name, root)
    except Exception as error:
        full = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
        if isinstance(error, OSError) and error.errno in full:
            raise not_writable(root, error) from error
        raise UserError(_not_fetched(name, root, reason_of(error))) from error


def _needs(name: str, package: str) -> UserError:
    return UserError(f"{name} needs the package {package}: pip install {package}.")


def _not_fetched(name: str, root: str, reason: str) -> str:
    """The message for a failed download: the reason, and the files to put in place by hand."""
    archives = TABLE[name].archives
    folder = os.path.dirname(os.path.join(root, archives[0]))
    missing = [path for path in archives if not os.path.isfile(os.path.join(root, path))]
    files = ", ".join(os.path.basename(path) for path in missing or archives)
    if not missing:
        return (
            f"{name} cannot be opened or downloaded again ({reason}): put an undamaged {files} "
            f"into {folder}."
        )
    if name == "imagenet":
        return (
            "imagenet cannot be downloaded (image-net.org requires a login): get it there and put "
            f"{files} into {folder}, or its unpacked train/ and val/."
        )
    return (
        f"{name} cannot be downloaded ({reason}): put {files} into {folder} by hand, or set "
        f"{VARIABLE} to a folder that has the data."
    )
