"""Packs any data into shards with an index; an interrupted call is resumed by repeating it."""

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
from lewel.data.pack.folder import RECORDS, Record, Target, full_disk_explained, write_text
from lewel.data.pack.format import (
    ANNOTATIONS,
    INDEX,
    SAMPLES,
    SHARDS_VERSION,
    TRAIN,
    Index,
    Shard,
    Written,
    index_text,
    read_index,
)
from lewel.data.pack.tables import TABLES, TableWriter
from lewel.data.pack.tar import TarWriter
from lewel.data.sources.images import CORRUPT_GRACE, CORRUPT_LIMIT, UnreadableImage
from lewel.data.sources.source import Source, digest
from lewel.data.sources.to_pack import ToPack
from lewel.data.workers import leave_signals_to_the_parent, workers_explained
from lewel.errors import RunError
from lewel.ops.randomness import generator
from lewel.ops.ranks import meet, rank, ranks
from lewel.progress import Bar, show

CORRUPT: Final = "corrupt_images.jsonl"
CHUNK: Final = 16  # images per batch of a worker
_KEY: Final = 0x9AC4  # separates the order of the shards from other random streams of the seed


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

    @property
    def record(self) -> str:
        return f"{RECORDS}/{self.split}-{self.number:06d}.json"


class Packing:
    """Packs data into one place, on one rank or on several that share it."""

    def __init__(
        self, opened: ToPack, target: Target, settings: Settings, console: Console
    ) -> None:
        self.target, self.settings, self.console = target, settings, console
        for note in opened.notes if rank() == 0 else ():
            show(console, note)
        self.sources, self.folder, self.absent = opened.sources, opened.folder, opened.corrupt
        self.manifest = {
            "version": SHARDS_VERSION,
            "source": opened.place,
            **asdict(settings.encoding),
            "shard_images": settings.shard_images,
            "seed": settings.seed,
            **{f"{split} images": len(source) for split, source in self.sources.items()},
            **{f"{split} digest": digest(source) for split, source in self.sources.items()},
        }
        self.seen, self.corrupt = 0, list[dict[str, Any]]()

    def run(self, workers: int) -> Index | None:
        """Write the missing shards, shared over the ranks; rank 0 writes and returns the index."""
        with full_disk_explained(self.target.shown):
            if rank() == 0:
                with self.target.claimed(self.manifest):
                    meet("start")
                    self.write_shards(workers)
                    meet("shards")
                    self.finish()
                    meet("index")
            else:
                meet("start")
                self.write_shards(workers)
                meet("shards")
                meet("index")
        return read_index(self.target.store(), self.target.shown) if rank() == 0 else None

    def write_shards(self, workers: int) -> None:
        """Write this rank's shards that are missing or damaged."""
        mine = [piece for n, piece in enumerate(self.pieces()) if n % ranks() == rank()]
        images = sum(len(piece.order) for piece in mine)
        with Bar(f"packing {self.target.shown}", images, self.console, shown=rank() == 0) as bar:
            for piece in mine:
                record = self.finished(piece)
                if record is None:
                    self.write(piece, workers, bar)
                else:
                    self.seen += len(piece.order)
                    self.corrupt += record["bad"]
                    bar.advance(len(piece.order), cached=True)

    def finish(self) -> None:
        """Count and list the corrupt images of all shards, and write the index."""
        pieces = list(self.pieces())
        self.seen = sum(len(piece.order) for piece in pieces)
        self.corrupt = [line for piece in pieces for line in self.read_record(piece)["bad"]]
        self.check_corrupt(grace=0)
        self.list_corrupt()
        self.write_index(pieces)

    def read_record(self, piece: Piece) -> Record:
        record: Record = json.loads(self.target.read(piece.record))
        return record

    def pieces(self) -> Iterator[Piece]:
        """All shards, with their samples in a random order that mixes the classes."""
        size = self.settings.shard_images
        for key, (split, source) in enumerate(self.sources.items()):
            order = generator(self.settings.seed, _KEY, key).permutation(len(source))
            if split == ANNOTATIONS:  # the files of a folder are read one after the other
                order.sort()
            for number, start in enumerate(range(0, len(source), size)):
                yield Piece(split, number, source, start, order[start : start + size])

    def finished(self, piece: Piece) -> Record | None:
        """The record of a shard that exists and is intact."""
        try:
            record = self.read_record(piece)
            intact = self.target.is_intact(piece.file, record)
            return record if intact and not self.repaired(piece, record["bad"]) else None
        except (FileNotFoundError, ValueError, TypeError, KeyError):  # missing or damaged
            return None

    def repaired(self, piece: Piece, corrupt: list[dict[str, Any]]) -> bool:
        """Whether an image that was corrupt when the shard was written can now be read."""
        names = {line["image"] for line in corrupt}
        for index in piece.order.tolist() if names else ():
            if piece.source.describe(index) in names:
                with suppress(UnreadableImage):
                    encode(piece.source, index, self.settings.encoding)
                    return True
        return False

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

        self.target.remove(piece.record)
        self.target.write(piece.file, fill)
        write_text(self.target, piece.record, json.dumps(record))
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
        with workers_explained():
            yield from loader

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
                f"listed in {self.target.shown}/{CORRUPT}: repair them and run the same "
                "command again."
            )

    def list_corrupt(self) -> None:
        """List the corrupt images, which are not in the shards, in a file."""
        if not self.corrupt:
            self.target.remove(CORRUPT)
            return
        text = "".join(json.dumps(line) + "\n" for line in self.corrupt)
        write_text(self.target, CORRUPT, text)

    def write_index(self, pieces: list[Piece]) -> None:
        """Join the records of the shards; the file of tables is written first, the index last."""
        splits: dict[str, Written] = {}

        def fill(temp: Path) -> None:
            with temp.open("wb") as file:
                writer = TableWriter(file)
                for split, source in self.sources.items():
                    mine = [piece for piece in pieces if piece.split == split]
                    splits[split] = self.write_tables(writer, mine, source.labels is not None)

        train = self.sources[TRAIN]
        self.target.write(TABLES, fill)
        corrupt = self.absent | {line["image"]: line["reason"] for line in self.corrupt}
        text = index_text(train.name, train.classes, splits, self.folder, corrupt)
        write_text(self.target, INDEX, text)
        self.target.remove(SAMPLES)  # of version 1

    def write_tables(self, writer: TableWriter, pieces: list[Piece], labelled: bool) -> Written:
        """Write the tables of a split, shard after shard."""
        shards, tables, labels = [], [], list[npt.NDArray[np.int64]]()
        for piece in pieces:
            record = self.read_record(piece)
            count = len(record["offsets"])
            shards.append(Shard(piece.file, record["bytes"], record["sha256"], count))
            tables.append(writer.shard(record))
            labels.append(np.array(record["labels"], np.int64))
        found = writer.section(np.concatenate(labels).tobytes()) if labelled else None
        return Written(shards, tables, found)


def identity(batch: Any) -> Any:
    """The collate function: `__getitems__` already returns a batch."""
    return batch
