"""Packs any data into shards with an index; an interrupted call is resumed by repeating it."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from torch.utils.data import DataLoader

from lewel.data.pack.encoding import Encoded, Encoder, Encoding, encode
from lewel.data.pack.folder import locked_folder
from lewel.data.pack.format import (
    INDEX,
    SAMPLES,
    TRAIN,
    UNLABELLED,
    VAL,
    VERSION,
    Index,
    Samples,
    Shard,
)
from lewel.data.pack.tar import TarWriter
from lewel.data.sources.images import CORRUPT_GRACE, CORRUPT_LIMIT, UnreadableImage
from lewel.data.sources.names import Names
from lewel.data.sources.open import open_splits
from lewel.data.sources.source import Source, digest
from lewel.data.workers import leave_signals_to_the_parent, reader_died
from lewel.errors import RunError
from lewel.files import user_path, write_atomically
from lewel.ops.randomness import generator
from lewel.progress import Bar, show

CHUNK: Final = 16  # images per batch of a worker
_KEY: Final = 0x9AC4  # separates the order of the shards from other random streams of the seed

Record = dict[str, Any]  # of a finished shard, in records/


@dataclass(frozen=True)
class Settings:
    """The settings that determine the content of the shards."""

    encoding: Encoding
    shard_images: int = 8192
    seed: int = 0  # of the order in which the samples are stored


class Piece(NamedTuple):
    """The subset of a split that becomes one shard."""

    split: str
    number: int
    source: Source
    start: int  # of the shard in the stored order
    order: npt.NDArray[np.int64]  # indices in the source, in storage order

    @property
    def file(self) -> str:
        return f"{self.split}-{self.number:06d}.tar"


class Packing:
    """Packs data into one folder."""

    def __init__(self, data: str, out: Path, settings: Settings, console: Console) -> None:
        self.out, self.settings, self.console = out, settings, console
        notes: list[str] = []
        apart, train, val = open_splits(data, settings.encoding.size, notes)
        for note in notes:
            show(console, note)
        named = ((UNLABELLED, apart), (TRAIN, train), (VAL, val))
        self.sources = {split: source for split, source in named if source is not None}
        path = user_path(data)
        self.manifest = {
            "version": VERSION,
            "source": str(path.resolve()) if path.exists() else data,
            **asdict(settings.encoding),
            "shard_images": settings.shard_images,
            "seed": settings.seed,
            **{f"{split} images": len(source) for split, source in self.sources.items()},
            **{f"{split} digest": digest(source) for split, source in self.sources.items()},
        }
        self.seen, self.corrupt = 0, list[dict[str, Any]]()

    @property
    def images(self) -> int:
        return sum(len(source) for source in self.sources.values())

    def run(self, workers: int) -> Index:
        """Write the missing shards, then the index."""
        with locked_folder(self.out, self.manifest):
            records: dict[str, list[tuple[str, Record]]] = {split: [] for split in self.sources}
            with Bar(f"packing {self.out}", self.images, self.console) as bar:
                for piece in self.pieces():
                    record = self.finished(piece)
                    if record is None:
                        record = self.write(piece, workers, bar)
                    else:
                        self.seen += len(piece.order)
                        self.corrupt += record["bad"]
                        bar.advance(len(piece.order), cached=True)
                    records[piece.split].append((piece.file, record))
            self.check_corrupt(grace=0)
            self.list_corrupt()
            return self.write_index(records)

    def pieces(self) -> Iterator[Piece]:
        """All shards, with their samples in a random order that mixes the classes."""
        size = self.settings.shard_images
        for key, (split, source) in enumerate(self.sources.items()):
            order = generator(self.settings.seed, _KEY, key).permutation(len(source))
            for number, start in enumerate(range(0, len(source), size)):
                yield Piece(split, number, source, start, order[start : start + size])

    def finished(self, piece: Piece) -> Record | None:
        """The record of a shard that exists and is intact."""
        shard, path = self.out / piece.file, self.record_path(piece)
        if not (shard.exists() and path.exists()):
            return None
        try:
            record: Record = json.loads(path.read_bytes())
        except ValueError:
            return None
        with shard.open("rb") as file:
            intact = hashlib.file_digest(file, "sha256").hexdigest() == record["sha256"]
        return record if intact and not self.repaired(piece, record["bad"]) else None

    def repaired(self, piece: Piece, corrupt: list[dict[str, Any]]) -> bool:
        """Whether an image that was corrupt when the shard was written can now be read."""
        names = {line["image"] for line in corrupt}
        for index in piece.order.tolist() if names else ():
            if piece.source.describe(index) in names:
                with suppress(UnreadableImage):
                    encode(piece.source, index, self.settings.encoding)
                    return True
        return False

    def record_path(self, piece: Piece) -> Path:
        return self.out / "records" / f"{piece.file.removesuffix('.tar')}.json"

    def write(self, piece: Piece, workers: int, bar: Bar) -> Record:
        """Write one shard atomically, then its record."""
        labels, classes = piece.source.labels, piece.source.classes
        corrupt: list[dict[str, Any]] = []
        record: Record = {}

        def fill(temp: Path) -> None:
            place = piece.start
            with TarWriter(temp) as tar:
                for chunk in self.encoded(piece, workers):
                    for index, suffix, data, reason in chunk:
                        name = piece.source.describe(index)
                        if reason:
                            corrupt.append({"image": name, "reason": reason, "split": piece.split})
                        else:
                            label = None if labels is None else int(labels[index])
                            text = None if label is None or classes is None else classes[label]
                            tar.add(f"{place:09d}", suffix, data, name, label, text)
                        place += 1
                    bar.advance(len(chunk))
                    self.seen += len(chunk)
                    self.check_corrupt(CORRUPT_GRACE, corrupt)
            record.update(tar.record(), bad=corrupt)

        path = self.record_path(piece)
        path.unlink(missing_ok=True)
        write_atomically(self.out / piece.file, fill)
        text = json.dumps(record)
        write_atomically(path, lambda temp: temp.write_text(text, encoding="utf-8"))
        self.corrupt += corrupt
        return record

    def encoded(self, piece: Piece, workers: int) -> Iterator[list[Encoded]]:
        """The encoded images of a shard, in order."""
        loader = DataLoader(
            Encoder(piece.source, piece.order, self.settings.encoding),  # type: ignore[arg-type]
            batch_size=CHUNK,
            collate_fn=identity,
            num_workers=min(workers, -(-len(piece.order) // CHUNK)),
            worker_init_fn=leave_signals_to_the_parent,
        )
        try:
            yield from loader
        except RuntimeError as error:
            if not reader_died(error):
                raise
            raise RunError(
                "A process that encodes images was killed (did memory run out?): run the same "
                "command again with fewer --workers to resume."
            ) from None

    def check_corrupt(self, grace: int, more: list[dict[str, Any]] | None = None) -> None:
        """Raise RunError if too many images are corrupt."""
        corrupt = [*self.corrupt, *(more or ())] if more else self.corrupt
        if self.seen >= grace and len(corrupt) > CORRUPT_LIMIT * self.seen:
            self.corrupt = corrupt
            self.list_corrupt()
            last = corrupt[-1]
            raise RunError(
                f"{len(corrupt):,} of the {self.seen:,} images read are corrupt, more than "
                f"{CORRUPT_LIMIT:.0%} (for example {last['image']}: {last['reason']}). All are "
                f"listed in {self.out / 'corrupt_images.jsonl'}: repair them and run the same "
                "command again."
            )

    def list_corrupt(self) -> None:
        """List the corrupt images, which are not in the shards, in a file."""
        path = self.out / "corrupt_images.jsonl"
        if not self.corrupt:
            path.unlink(missing_ok=True)
            return
        text = "".join(json.dumps(line) + "\n" for line in self.corrupt)
        write_atomically(path, lambda temp: temp.write_text(text, encoding="utf-8"))

    def write_index(self, records: dict[str, list[tuple[str, Record]]]) -> Index:
        """Join the records of the shards; the file of samples is written first, the index last."""
        train = self.sources[TRAIN]
        shards = {
            split: [
                Shard(file, record["bytes"], record["sha256"], len(record["offsets"]))
                for file, record in listed
            ]
            for split, listed in records.items()
        }
        samples = {
            split: joined([record for _, record in listed], self.sources[split].labels is not None)
            for split, listed in records.items()
        }
        index = Index(train.name, train.classes, shards, samples)
        text, content = index.files()
        write_atomically(self.out / SAMPLES, lambda temp: temp.write_bytes(content))
        write_atomically(self.out / INDEX, lambda temp: temp.write_text(text, encoding="utf-8"))
        return index


def joined(records: list[Record], labelled: bool) -> Samples:
    """The samples of all shards of a split, in order."""

    def column(key: str, kind: type[np.generic]) -> npt.NDArray[Any]:
        return np.concatenate([np.array(record[key], kind) for record in records])

    return Samples(
        column("offsets", np.int64),
        column("sizes", np.int64),
        column("checksums", np.uint32),
        column("labels", np.int64) if labelled else None,
        Names.of([name for record in records for name in record["names"]]),
    )


def identity(batch: Any) -> Any:
    """The collate function: `__getitems__` already returns a batch."""
    return batch
