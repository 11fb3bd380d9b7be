"""`lewel embed`: features of every image of a data set, written to a file for other tools."""

import errno
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console

from lewel.config.commands import EmbedConfig
from lewel.config.settings import storage_of
from lewel.data.sources.file_list import Lists
from lewel.data.sources.open import open_data, open_every_split
from lewel.data.sources.source import Source, digest
from lewel.data.workers import workers_explained
from lewel.errors import RunError, UserError
from lewel.evaluate.features import Extractor, refuse_not_finite
from lewel.evaluate.results import fingerprint
from lewel.files import lock, mark, refuse_foreign, write_atomically, write_marked
from lewel.interop.backbones import find_network, open_backbone
from lewel.interop.lookup import weights_file
from lewel.progress import Bar, plain_console, show
from lewel.tasks.outcome import Embedded
from lewel.train.devices import default_workers, open_fabric, placement

PART = 4096  # images of a part; a resume starts after the last complete part
LOCK = ".lock"
CLAIM = "question"  # version 0.1's name: parts that it wrote are used


def embed(
    what: str,
    data: str,
    config: EmbedConfig,
    out: Path | None = None,
    console: Console | None = None,
) -> Embedded:
    """Write path, split, label and embedding of each image to a .parquet or .npz file.

    Parts are kept beside the file until it is complete: the same call resumes after a kill.
    Memory does not grow with the number of images.
    """
    out = out or (Path(what) if Path(what).is_dir() else Path()) / "features.npz"
    if out.suffix not in JOIN:
        raise UserError(f"--out {out} ends in {out.suffix!r}: expected .parquet or .npz.")
    if out.suffix == ".parquet":
        _need_pyarrow()
    refuse_foreign(out, "embed", config.overwrite)
    network = find_network(what, config.backbone, config.image_size)
    place = placement(1, 1)
    fabric = open_fabric(place, config.accelerator, "32", False)
    console = console or plain_console()
    splits = open_sources(data, network.image_size, config, out, console)
    total = sum(map(len, splits.values()))
    net = open_backbone(what, network).to(fabric.device)
    workers = (
        default_workers(fabric.device, place.cores) if config.workers is None else config.workers
    )
    extractor = Extractor(
        net,
        network.image_size,
        network.mean,
        network.std,
        fabric.device,
        config.batch_size,
        workers,
    )
    parts = out.with_name(out.name + ".parts")
    digests = " ".join(digest(source) for source in splits.values())
    with (
        _claimed(parts, f"{_of(what)} {network} {digests}"),
        workers_explained(),
        Bar(f"features of {total:,} images", total, console) as bar,
    ):
        for number, (_, source, indices) in enumerate(_cut(splits)):
            file = parts / f"{number:06d}.npy"
            if file.exists():
                bar.advance(len(indices), cached=True)
                continue
            rows, readable = extractor.features(source, indices, bar.advance)
            _refuse_corrupt(source, indices, readable)
            refuse_not_finite(rows, source, indices)
            values = rows.cpu().numpy()
            write_atomically(file, lambda aside, v=values: _save(aside, v))  # type: ignore[misc]
        write_marked(out, "embed", lambda aside: JOIN[out.suffix](aside, parts, splits))
        for file in (*parts.glob("*.npy"), parts / CLAIM, parts / LOCK):
            file.unlink()
        parts.rmdir()
    return Embedded(total, out, {split: len(source) for split, source in splits.items()})


def open_sources(
    data: str, image_size: int, config: EmbedConfig, out: Path, console: Console
) -> dict[str, Source]:
    """All images of the data by split, or a number of those to train on."""
    notes: list[str] = []
    lists, storage = Lists.beside(out.parent), storage_of(config)
    if config.limit is None:
        splits = open_every_split(data, image_size, notes, lists, storage)
    else:
        opened = open_data(
            data, image_size=image_size, limit=config.limit, lists=lists, storage=storage
        )
        splits, notes = {"train": opened.unlabelled}, list(opened.notes)
    show(console, *notes)
    return splits


def _of(what: str) -> str:
    file = weights_file(what)
    return what if file is None else fingerprint(file)


def _cut(splits: dict[str, Source]) -> Iterator[tuple[str, Source, np.ndarray]]:
    """Split, source and indices of each part."""
    for split, source in splits.items():
        for start in range(0, len(source), PART):
            yield split, source, np.arange(start, min(start + PART, len(source)))


@contextmanager
def _claimed(parts: Path, settings: str) -> Iterator[None]:
    """Create and lock the folder of parts; an error if it holds parts of other settings."""
    claimed = parts / CLAIM
    try:
        parts.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in parts.iterdir()} - {LOCK}
        if not claimed.exists() and others:
            raise UserError(f"{parts} holds other files: use another --out.")
        held = (parts / LOCK).open("a")
    except OSError as error:
        raise UserError(f"{parts} cannot be written: {error.strerror}.") from None
    with held:
        lock(held, f"Another process is writing {parts}: wait for it, or use another --out.")
        if claimed.exists() and claimed.read_text() != settings:
            raise UserError(
                f"{parts} holds parts of other features, of a command that was stopped: remove it, "
                "or use another --out."
            )
        claimed.write_text(settings)
        yield


def _refuse_corrupt(source: Source, indices: np.ndarray, readable: torch.Tensor) -> None:
    if not readable.all():
        corrupt = int(indices[int((~readable).nonzero()[0])])
        raise RunError(
            f"{source.describe(corrupt)} is corrupt: repair or remove it, and run the same command "
            "to resume."
        )


def _save(aside: Path, values: np.ndarray) -> None:
    with aside.open("wb") as file:  # given a path, numpy would append .npy
        try:
            np.save(file, values)
        except OSError as error:
            if error.errno is None:  # numpy's own, of a write that was cut short
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(aside)) from None
            raise


class Rows(NamedTuple):
    """The rows of a part."""

    paths: list[str]
    split: str
    labels: list[str | None]
    embeddings: np.ndarray  # (N, C)


def _rows(parts: Path, splits: dict[str, Source]) -> Iterator[Rows]:
    """The parts, one after the other."""
    for number, (split, source, indices) in enumerate(_cut(splits)):
        paths = [source.describe(int(index)) for index in indices]
        labels: list[str | None] = [None] * len(paths)
        if source.labels is not None and source.classes is not None:
            labels = [source.classes[label] for label in source.labels[indices]]
        embeddings = np.load(parts / f"{number:06d}.npy", mmap_mode="r")
        yield Rows(paths, split, labels, embeddings)


def _has_labels(splits: dict[str, Source]) -> bool:
    return any(source.labels is not None for source in splits.values())


def _join_npz(aside: Path, parts: Path, splits: dict[str, Source]) -> None:
    """Join all parts as numpy's arrays; a column is written at a time, part by part."""
    columns: dict[str, Callable[[Rows], np.ndarray]] = {
        "path": lambda rows: np.array(rows.paths),
        "embedding": lambda rows: rows.embeddings,
        "split": lambda rows: np.full(len(rows.paths), rows.split),
    }
    if _has_labels(splits):
        columns["label"] = lambda rows: np.array([label or "" for label in rows.labels])
    with zipfile.ZipFile(aside, "w") as archive:
        for name, column in columns.items():
            shapes = [(one.dtype, one.shape) for one in map(column, _rows(parts, splits))]
            kind = max((dtype for dtype, _ in shapes), key=lambda dtype: dtype.itemsize)
            shape = (sum(shape[0] for _, shape in shapes), *shapes[0][1][1:])
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": kind.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_2_0(file, header)
                for rows in _rows(parts, splits):
                    file.write(column(rows).astype(kind).tobytes())


def _join_parquet(aside: Path, parts: Path, splits: dict[str, Source]) -> None:
    """Join all parts as a Parquet file; each is a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    labelled = _has_labels(splits)
    width = np.load(next(parts.glob("*.npy")), mmap_mode="r").shape[1]
    fields = [("path", pa.string()), ("split", pa.string())]
    fields += [("label", pa.string())] if labelled else []
    fields += [("embedding", pa.list_(pa.float32(), width))]
    schema = pa.schema(fields, {"writer": mark("embed")})
    with pq.ParquetWriter(aside, schema) as writer:
        for rows in _rows(parts, splits):
            columns = [pa.array(rows.paths), pa.array([rows.split] * len(rows.paths))]
            columns += [pa.array(rows.labels, pa.string())] if labelled else []
            vectors = pa.array(np.ascontiguousarray(rows.embeddings).ravel())
            columns += [pa.FixedSizeListArray.from_arrays(vectors, width)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


JOIN = {".npz": _join_npz, ".parquet": _join_parquet}


def _need_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise UserError(
            "A .parquet file needs pyarrow: pip install 'lewel[parquet]', or write .npz."
        )
