"""The format of packed data: shards in WebDataset's tar format, and an index of every sample.

lewel-pack.json     the manifest: what is packed, and how; written first
train-000000.tar    000000017.jpg, 000000017.cls (the class, where there are labels) and
                    000000017.json (the image's name); samples in a random order
annotations-*.tar   files of data with masks or boxes, by their paths in the data set
records/            one for each finished shard, to resume from
lewel-samples.bin   for each shard a table of offsets, sizes, checksums and names; the labels
lewel-index.json    classes, and for each shard its bytes, SHA-256 and tables; written last

Version 1 had all tables in one lewel-samples.npz, which is read as a whole.
"""

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lewel.data.pack.stores import Folder, Store
from lewel.data.pack.tables import (
    TABLES,
    Joined,
    Mapped,
    Samples,
    Section,
    Sections,
    Tables,
    checked,
    damaged_sections,
)
from lewel.data.sources.check import refuse_outside
from lewel.data.sources.names import Names
from lewel.errors import UserError

VERSION: Final = 2  # of the index
SHARDS_VERSION: Final = 1  # of the shards and of the manifest
MANIFEST: Final = "lewel-pack.json"
INDEX: Final = "lewel-index.json"
SAMPLES: Final = "lewel-samples.npz"  # of version 1
UNLABELLED: Final = "unlabelled"  # the split that is only for pre-training, if there is one
TRAIN: Final = "train"
VAL: Final = "val"
ANNOTATIONS: Final = "annotations"  # masks, boxes, lists and images of other splits, as they are
EAGER: Final = 64 * 2**20  # bytes of local tables that are checked before anything is read
_AGAIN: Final = "run the same `lewel pack` command again to resume"

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """One tar file."""

    file: str
    bytes: int
    sha256: str
    images: int


@dataclass(frozen=True)
class Index:
    """The index of packed data: everything but the images."""

    name: str
    classes: tuple[str, ...] | None
    shards: dict[str, list[Shard]]  # by split
    tables: dict[str, Tables]
    labels: dict[str, Labels | None]
    sections: tuple[Section, ...] = ()  # all of TABLES
    folder: str | None = None  # the name of the data set's folder, where it has annotations
    corrupt: dict[str, str] = field(default_factory=dict)  # left out of it, with the reason


@dataclass(frozen=True)
class Written:
    """What the index holds of a split: its shards, their tables, and its labels."""

    shards: list[Shard]
    tables: list[Sections]
    labels: Section | None


def index_text(
    name: str,
    classes: tuple[str, ...] | None,
    splits: dict[str, Written],
    folder: str | None = None,
    corrupt: dict[str, str] | None = None,
) -> str:
    """The text of INDEX, as `read_index` reads it."""
    shards = {
        split: [
            {**asdict(shard), "table": tables.rows, "names": tables.names}
            for shard, tables in zip(written.shards, written.tables, strict=True)
        ]
        for split, written in splits.items()
    }
    labels = {split: written.labels for split, written in splits.items()}
    about = {"version": VERSION, "name": name, "classes": classes, "labels": labels}
    about |= {} if folder is None else {"folder": folder, "corrupt": corrupt or {}}
    return json.dumps({**about, "shards": shards}, indent=1)


def read_index(store: Store, shown: str) -> Index:
    """The index of packed data, checked."""
    try:
        about = json.loads(store.read_file(INDEX))
        version = about["version"]
        if not isinstance(version, int) or version > VERSION:
            raise UserError(
                f"{shown} was packed by a newer lewel (format {version}, this one reads "
                f"{VERSION}): update lewel."
            )
        index = _version_1(store, about, shown) if version == 1 else _mapped(store, about, shown)
        _check(index)
        return index
    except FileNotFoundError as error:
        raise UserError(
            f"{shown} has no index of packed data ({INDEX} and {TABLES}): give the output of "
            f"`lewel pack`, or {_AGAIN}."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{shown}/{INDEX} is damaged: copy it again, or {_AGAIN}.") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise UserError(f"The index of {shown} cannot be read ({reason}).") from error


def _mapped(store: Store, about: dict[str, Any], shown: str) -> Index:
    """The index of version 2; tables are read when they are needed."""
    shards: dict[str, list[Shard]] = {}
    tables: dict[str, list[Sections]] = {}
    for split, listed in about["shards"].items():
        tables[split] = [
            Sections(Section(*one.pop("table")), Section(*one.pop("names"))) for one in listed
        ]
        shards[split] = _shards(listed, shown)
    listed_labels = {split: about["labels"][split] for split in shards}
    labels = {s: None if one is None else Section(*one) for s, one in listed_labels.items()}
    sections = (*_all(tables), *(one for one in labels.values() if one is not None))
    if isinstance(store, Folder):
        size = store.size(TABLES)
        small = size <= EAGER
        if any(one.end > size for one in sections) or (small and damaged_sections(store, sections)):
            raise UserError(f"{shown}/{TABLES} is damaged: copy it again, or {_AGAIN}.")
    mapped: dict[str, Tables] = {
        split: Mapped(
            store,
            tables[split],
            [one.bytes for one in listed],
            [one.images for one in listed],
        )
        for split, listed in shards.items()
    }
    read = {
        split: None if one is None else checked(store, one).view(np.int64)
        for split, one in labels.items()
    }
    folder, corrupt = about.get("folder"), dict(about.get("corrupt", {}))
    return Index(about["name"], _classes(about), shards, mapped, read, sections, folder, corrupt)


def _all(tables: dict[str, list[Sections]]) -> Iterator[Section]:
    for listed in tables.values():
        for one in listed:
            yield from one


def _version_1(store: Store, about: dict[str, Any], shown: str) -> Index:
    """The index of version 1: all tables at once."""
    content = store.read_file(SAMPLES)
    if hashlib.sha256(content).hexdigest() != about["samples"]["sha256"]:
        raise UserError(f"{shown}/{SAMPLES} is damaged: copy it again, or {_AGAIN}.")
    shards = {split: _shards(listed, shown) for split, listed in about["shards"].items()}
    tables: dict[str, Tables] = {}
    labels: dict[str, Labels | None] = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for split, listed in shards.items():
            of_split = _of_split(arrays, split)
            _check_tables(of_split, listed)
            names = Names(of_split["names"], of_split["ends"])
            columns = (of_split[key] for key in ("offsets", "sizes", "checksums"))
            tables[split] = Joined(Samples(*columns), names, [one.images for one in listed])
            labels[split] = of_split.get("labels")
    return Index(about["name"], _classes(about), shards, tables, labels)


def _shards(listed: list[dict[str, Any]], shown: str) -> list[Shard]:
    shards = [Shard(**one) for one in listed]
    refuse_outside((one.file for one in shards), shown)
    numbers = [number for shard in shards for number in (shard.bytes, shard.images)]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError("the size of a shard is not a number of bytes and of images")
    return shards


def _classes(about: dict[str, Any]) -> tuple[str, ...] | None:
    return None if about["classes"] is None else tuple(about["classes"])


def _check(index: Index) -> None:
    """Raise ValueError for parts of an index that contradict each other."""
    if not index.shards or not all(index.shards.values()):
        raise ValueError("a split has no shards")
    for split, shards in index.shards.items():
        labels = index.labels[split]
        if labels is None:
            continue
        if labels.shape != (sum(shard.images for shard in shards),):
            raise ValueError("labels are not one for each image")
        if len(labels) and (labels.min() < 0 or labels.max() >= len(index.classes or ())):
            raise ValueError("a label is no class")


def _check_tables(arrays: dict[str, npt.NDArray[Any]], shards: list[Shard]) -> None:
    """Raise ValueError for tables of version 1 that contradict each other."""
    images = [shard.images for shard in shards]
    for key, table in arrays.items():
        wrong = table.shape != (sum(images),) or table.dtype.kind not in "iu" or (table < 0).any()
        if key != "names" and wrong:
            raise ValueError("a table is not one whole number for each image")
    ends = np.repeat(np.array([shard.bytes for shard in shards], np.int64), images)
    if (arrays["offsets"] > ends).any() or (arrays["sizes"] > ends - arrays["offsets"]).any():
        raise ValueError("an image lies outside of its shard")


def _of_split(arrays: Any, split: str) -> dict[str, npt.NDArray[Any]]:
    prefix = split + "/"
    return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}
