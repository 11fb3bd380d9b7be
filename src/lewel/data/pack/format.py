"""The format of packed data: shards in WebDataset's tar format, and an index of every sample.

lewel-pack.json     the manifest: what is packed, and how; written first
train-000000.tar    000000017.jpg, 000000017.cls (the class, where there are labels) and
                    000000017.json (the image's name); samples in a random order
records/            one for each finished shard, to resume from
lewel-samples.npz   for each split: offsets, sizes, checksums, labels and names of the samples
lewel-index.json    classes, and for each shard its bytes and SHA-256; written last
"""

import hashlib
import io
import json
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lewel.data.pack.stores import Store
from lewel.data.sources.check import refuse_outside
from lewel.data.sources.names import Names
from lewel.errors import UserError

VERSION: Final = 1
MANIFEST: Final = "lewel-pack.json"
INDEX: Final = "lewel-index.json"
SAMPLES: Final = "lewel-samples.npz"
UNLABELLED: Final = "unlabelled"  # the split that is only for pre-training, if there is one
TRAIN: Final = "train"
VAL: Final = "val"
_AGAIN: Final = "run the same `lewel pack` command again to resume"


@dataclass(frozen=True)
class Shard:
    """One tar file."""

    file: str
    bytes: int
    sha256: str
    images: int


@dataclass(frozen=True)
class Samples:
    """Locations, labels and names of the N samples of a split, shard after shard."""

    offsets: npt.NDArray[np.int64]  # (N,) of the image's bytes in its shard
    sizes: npt.NDArray[np.int64]  # (N,)
    checksums: npt.NDArray[np.uint32]  # (N,) CRC-32 of the image's bytes
    labels: npt.NDArray[np.int64] | None  # (N,)
    names: Names

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All fields as arrays."""
        parts: dict[str, npt.NDArray[Any]] = {
            "offsets": self.offsets,
            "sizes": self.sizes,
            "checksums": self.checksums,
            "names": self.names.characters,
            "ends": self.names.ends,
        }
        return parts if self.labels is None else {**parts, "labels": self.labels}

    @classmethod
    def of(cls, arrays: dict[str, npt.NDArray[Any]]) -> "Samples":
        return cls(
            arrays["offsets"],
            arrays["sizes"],
            arrays["checksums"],
            arrays.get("labels"),
            Names(arrays["names"], arrays["ends"]),
        )


@dataclass(frozen=True)
class Index:
    """The index of packed data: everything but the images."""

    name: str
    classes: tuple[str, ...] | None
    shards: dict[str, list[Shard]]  # by split
    samples: dict[str, Samples]

    def files(self) -> tuple[str, bytes]:
        """The text of INDEX and the bytes of SAMPLES, as `read_index` reads them."""
        buffer = io.BytesIO()
        arrays = {
            f"{split}/{key}": array
            for split, samples in self.samples.items()
            for key, array in samples.arrays().items()
        }
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        content = buffer.getvalue()
        about = {
            "version": VERSION,
            "name": self.name,
            "classes": self.classes,
            "samples": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
            "shards": {s: [asdict(shard) for shard in shards] for s, shards in self.shards.items()},
        }
        return json.dumps(about, indent=1), content


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
        content = store.read_file(SAMPLES)
        if hashlib.sha256(content).hexdigest() != about["samples"]["sha256"]:
            raise UserError(f"{shown}/{SAMPLES} is damaged: copy it again, or {_AGAIN}.")
        shards = {
            split: [Shard(**shard) for shard in listed] for split, listed in about["shards"].items()
        }
        refuse_outside((one.file for listed in shards.values() for one in listed), shown)
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            samples = {split: Samples.of(_of_split(arrays, split)) for split in shards}
        classes = None if about["classes"] is None else tuple(about["classes"])
        index = Index(about["name"], classes, shards, samples)
        _check(index)
        return index
    except FileNotFoundError as error:
        raise UserError(
            f"{shown} has no index of packed data ({INDEX} and {SAMPLES}): give the output of "
            f"`lewel pack`, or {_AGAIN}."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{shown}/{INDEX} is damaged: copy it again, or {_AGAIN}.") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise UserError(f"The index of {shown} cannot be read ({reason}).") from error


def _check(index: Index) -> None:
    """Raise ValueError for tables of an index that contradict each other."""
    if not index.shards or not all(index.shards.values()):
        raise ValueError("a split has no shards")
    for split, shards in index.shards.items():
        numbers = [number for shard in shards for number in (shard.bytes, shard.images)]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError("the size of a shard is not a number of bytes and of images")
        samples, images = index.samples[split], [shard.images for shard in shards]
        tables = {**samples.arrays()}
        tables.pop("names")
        for table in tables.values():
            if table.shape != (sum(images),) or table.dtype.kind not in "iu" or (table < 0).any():
                raise ValueError("a table is not one whole number for each image")
        ends = np.repeat(np.array([shard.bytes for shard in shards], np.int64), images)
        if (samples.offsets > ends).any() or (samples.sizes > ends - samples.offsets).any():
            raise ValueError("an image lies outside of its shard")
        if samples.labels is not None and (samples.labels >= len(index.classes or ())).any():
            raise ValueError("a label is no class")


def _of_split(arrays: Any, split: str) -> dict[str, npt.NDArray[Any]]:
    prefix = split + "/"
    return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}
