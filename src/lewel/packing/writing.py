"""Packing: any data once into shards with an index; the same call goes on after a kill."""

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

from lewel.bars import Bar
from lewel.data.encoding import MOST, Encoded, Encoder, Encoding, encode
from lewel.data.images import UnreadableImage
from lewel.data.loader import leave_signals_to_the_parent, reader_died
from lewel.data.names import Names
from lewel.data.packs import (
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
from lewel.data.sources import Source, digest, open_splits
from lewel.data.tars import TarWriter
from lewel.errors import RunError, UserError
from lewel.files import write_atomically
from lewel.ops.randomness import generator
from lewel.packing.folder import held
from lewel.train.monitor import BAD_GRACE, BAD_SHARE

CHUNK: Final = 16  # images that a worker hands over at once
_KEY: Final = 0x9AC4  # keeps the order of the shards apart from other streams of the seed

Record = dict[str, Any]  # what a finished shard leaves in records/


@dataclass(frozen=True)
class Settings:
    """What decides the bytes of the shards."""

    encoding: Encoding
    shard_images: int = 8192
    seed: int = 0  # of the order in which the samples are stored

    def check(self) -> None:
        """One sentence on a value that cannot be."""
        for name, value, low, high in (
            ("size", self.encoding.size, 16, MOST),
            ("quality", self.encoding.quality, 1, 100),
            ("shard-images", self.shard_images, 1, 10**9),
            ("seed", self.seed, 0, 2**63),
        ):
            if not low <= value <= high:
                raise UserError(f"--{name} is {value}: expected {low} to {high:,}.")


class Piece(NamedTuple):
    """The part of a split that becomes one shard."""

    split: str
    number: int
    source: Source
    start: int  # of the shard in the stored order
    order: npt.NDArray[np.int64]  # indices in the source, in the order they are stored in

    @property
    def file(self) -> str:
        return f"{self.split}-{self.number:06d}.tar"


class Packing:
    """One folder of packed data that is being made."""

    def __init__(self, data: str, out: Path, settings: Settings, console: Console) -> None:
        settings.check()
        self.out, self.settings, self.console = out, settings, console
        notes: list[str] = []
        apart, train, val = open_splits(data, settings.encoding.size, notes)
        for note in notes:
            console.print(note, highlight=False, markup=False, soft_wrap=True)
        named = ((UNLABELLED, apart), (TRAIN, train), (VAL, val))
        self.sources = {split: source for split, source in named if source is not None}
        path = Path(data).expanduser()
        self.claim = {
            "version": VERSION,
            "source": str(path.resolve()) if path.exists() else data,
            **asdict(settings.encoding),
            "shard_images": settings.shard_images,
            "seed": settings.seed,
            **{f"{split} images": len(source) for split, source in self.sources.items()},
            **{f"{split} digest": digest(source) for split, source in self.sources.items()},
        }
        self.seen, self.bad = 0, list[dict[str, Any]]()

    @property
    def images(self) -> int:
        return sum(len(source) for source in self.sources.values())

    def run(self, workers: int) -> Index:
        """Write what is not there yet, then the index."""
        with held(self.out, self.claim):
            records: dict[str, list[tuple[str, Record]]] = {split: [] for split in self.sources}
            with Bar(f"packing {self.out}", self.images, self.console) as bar:
                for piece in self.pieces():
                    record = self.finished(piece)
                    if record is None:
                        record = self.write(piece, workers, bar)
                    else:
                        self.seen += len(piece.order)
                        self.bad += record["bad"]
                        bar.advance(len(piece.order), known=True)
                    records[piece.split].append((piece.file, record))
            self.judge(grace=0)
            self.list_bad()
            return self.write_index(records)

    def pieces(self) -> Iterator[Piece]:
        """Every shard there will be, its samples in a random order, so that classes are mixed."""
        size = self.settings.shard_images
        for key, (split, source) in enumerate(self.sources.items()):
            order = generator(self.settings.seed, _KEY, key).permutation(len(source))
            for number, start in enumerate(range(0, len(source), size)):
                yield Piece(split, number, source, start, order[start : start + size])

    def finished(self, piece: Piece) -> Record | None:
        """The record of a shard that is there and whole."""
        shard, path = self.out / piece.file, self.record_path(piece)
        if not (shard.exists() and path.exists()):
            return None
        try:
            record: Record = json.loads(path.read_bytes())
        except ValueError:
            return None
        with shard.open("rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == record["sha256"]
        return record if whole and not self.mended(piece, record["bad"]) else None

    def mended(self, piece: Piece, bad: list[dict[str, Any]]) -> bool:
        """Whether an image that a shard was written without can be read by now."""
        names = {line["image"] for line in bad}
        for index in piece.order.tolist() if names else ():
            if piece.source.describe(index) in names:
                with suppress(UnreadableImage):
                    encode(piece.source, index, self.settings.encoding)
                    return True
        return False

    def record_path(self, piece: Piece) -> Path:
        return self.out / "records" / f"{piece.file.removesuffix('.tar')}.json"

    def write(self, piece: Piece, workers: int, bar: Bar) -> Record:
        """One shard, put in its place when it is complete, and then its record."""
        labels, classes = piece.source.labels, piece.source.classes
        bad: list[dict[str, Any]] = []
        record: Record = {}

        def fill(aside: Path) -> None:
            place = piece.start
            with TarWriter(aside) as tar:
                for chunk in self.encoded(piece, workers):
                    for index, suffix, data, reason in chunk:
                        name = piece.source.describe(index)
                        if reason:
                            bad.append({"image": name, "reason": reason, "split": piece.split})
                        else:
                            label = None if labels is None else int(labels[index])
                            text = None if label is None or classes is None else classes[label]
                            tar.add(f"{place:09d}", suffix, data, name, label, text)
                        place += 1
                    bar.advance(len(chunk))
                    self.seen += len(chunk)
                    self.judge(BAD_GRACE, bad)
            record.update(tar.record(), bad=bad)

        path = self.record_path(piece)
        path.unlink(missing_ok=True)
        write_atomically(self.out / piece.file, fill)
        text = json.dumps(record)
        write_atomically(path, lambda aside: aside.write_text(text, encoding="utf-8"))
        self.bad += bad
        return record

    def encoded(self, piece: Piece, workers: int) -> Iterator[list[Encoded]]:
        """The images of a shard in their order, whichever worker has made them."""
        loader = DataLoader(
            Encoder(piece.source, piece.order, self.settings.encoding),  # type: ignore[arg-type]
            batch_size=CHUNK,
            collate_fn=as_it_is,
            num_workers=min(workers, -(-len(piece.order) // CHUNK)),
            worker_init_fn=leave_signals_to_the_parent,
        )
        try:
            yield from loader
        except RuntimeError as error:
            if not reader_died(error):
                raise
            raise RunError(
                "A process that encodes images was ended from outside (did memory run out?): run "
                "the same command again with fewer --workers to go on."
            ) from None

    def judge(self, grace: int, more: list[dict[str, Any]] | None = None) -> None:
        """Stop where too many images cannot be read."""
        bad = [*self.bad, *(more or ())] if more else self.bad
        if self.seen >= grace and len(bad) > BAD_SHARE * self.seen:
            self.bad = bad
            self.list_bad()
            raise RunError(
                f"{len(bad):,} of the {self.seen:,} images seen could not be read, more than "
                f"{BAD_SHARE:.0%} (for example {bad[-1]['image']}: {bad[-1]['reason']}). "
                f"All are listed in {self.out / 'bad_images.jsonl'}: mend them and run the same "
                "command again."
            )

    def list_bad(self) -> None:
        """Leave the images that are not in the shards in a file."""
        path = self.out / "bad_images.jsonl"
        if not self.bad:
            path.unlink(missing_ok=True)
            return
        text = "".join(json.dumps(line) + "\n" for line in self.bad)
        write_atomically(path, lambda aside: aside.write_text(text, encoding="utf-8"))

    def write_index(self, records: dict[str, list[tuple[str, Record]]]) -> Index:
        """Join what the shards' records say: the samples' file first, the index last."""
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
        write_atomically(self.out / SAMPLES, lambda aside: aside.write_bytes(content))
        write_atomically(self.out / INDEX, lambda aside: aside.write_text(text, encoding="utf-8"))
        return index


def joined(records: list[Record], labelled: bool) -> Samples:
    """The samples of all shards of a split, one shard after the other."""

    def column(key: str, kind: type[np.generic]) -> npt.NDArray[Any]:
        return np.concatenate([np.array(record[key], kind) for record in records])

    return Samples(
        column("offsets", np.int64),
        column("sizes", np.int64),
        column("checksums", np.uint32),
        column("labels", np.int64) if labelled else None,
        Names.of([name for record in records for name in record["names"]]),
    )


def as_it_is(batch: Any) -> Any:
    """What `__getitems__` gives is the chunk."""
    return batch
