"""`lewel embed`: features of every image of a data set, written to a file for other tools."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from lewel.config.commands import EmbedConfig
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Source, digest
from lewel.errors import RunError, UserError
from lewel.evaluate.features import Extractor, refuse_not_finite
from lewel.evaluate.results import fingerprint
from lewel.files import mark, refuse_foreign, write_atomically, write_marked
from lewel.interop.backbones import find_network, open_backbone
from lewel.interop.lookup import weights_file
from lewel.progress import Bar, plain_console, show
from lewel.tasks.outcome import Embedded
from lewel.train.devices import default_workers, open_fabric, placement

PART = 4096  # images of a part; a resume starts after the last complete part
KINDS = (".parquet", ".npz")
CLAIM = "question"  # version 0.1's name: parts that it wrote are used


def embed(
    what: str,
    data: str,
    config: EmbedConfig,
    out: Path | None = None,
    console: Console | None = None,
) -> Embedded:
    """Write path, label and embedding of each image to a .parquet or .npz file.

    Parts are kept beside the file until it is complete: the same call resumes after a kill.
    """
    out = out or (Path(what) if Path(what).is_dir() else Path()) / "features.npz"
    if out.suffix not in KINDS:
        raise UserError(f"--out {out} ends in {out.suffix!r}: expected .parquet or .npz.")
    if out.suffix == ".parquet":
        _need_pyarrow()
    refuse_foreign(out, "embed", config.overwrite)
    network = find_network(what, config.backbone, config.image_size)
    place = placement(1, 1)
    fabric = open_fabric(place, config.accelerator, "32", False)
    console = console or plain_console()
    opened = open_data(data, image_size=network.image_size, limit=config.limit)
    for note in opened.notes:
        show(console, note)
    source = opened.unlabelled
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
    _claim(parts, f"{_of(what)} {network} {digest(source)}")
    with Bar(f"features of {len(source):,} images", len(source), console) as bar:
        for number, indices in enumerate(_cut(len(source))):
            file = parts / f"{number:06d}.npy"
            if file.exists():
                bar.advance(len(indices), cached=True)
                continue
            rows, readable = extractor.features(source, indices, bar.advance)
            _refuse_corrupt(source, indices, readable)
            refuse_not_finite(rows, source, indices)
            values = rows.cpu().numpy()
            write_atomically(file, lambda aside, v=values: _save(aside, v))  # type: ignore[misc]
    write_marked(out, "embed", lambda aside: _join(aside, out.suffix, parts, source))
    for file in (*parts.glob("*.npy"), parts / CLAIM):
        file.unlink()
    parts.rmdir()
    return Embedded(len(source), out)


def _of(what: str) -> str:
    file = weights_file(what)
    return what if file is None else fingerprint(file)


def _cut(total: int) -> Iterator[np.ndarray]:
    for start in range(0, total, PART):
        yield np.arange(start, min(start + PART, total))


def _claim(parts: Path, settings: str) -> None:
    """Create the folder of parts; an error if it holds parts of other settings."""
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{parts} cannot be written: {error.strerror}.") from None
    claimed = parts / CLAIM
    if claimed.read_text() != settings if claimed.exists() else any(parts.iterdir()):
        raise UserError(f"{parts} holds parts of other features: remove it, or use another --out.")
    claimed.write_text(settings)


def _refuse_corrupt(source: Source, indices: np.ndarray, readable: torch.Tensor) -> None:
    if not readable.all():
        corrupt = int(indices[int((~readable).nonzero()[0])])
        raise RunError(
            f"{source.describe(corrupt)} is corrupt: repair or remove it, and run the same command "
            "to resume."
        )


def _save(aside: Path, values: np.ndarray) -> None:
    with aside.open("wb") as file:  # given a path, numpy would append .npy
        np.save(file, values)


def _join(aside: Path, kind: str, parts: Path, source: Source) -> None:
    """Join all parts into one file, part by part where the format allows it."""
    files = sorted(parts.glob("*.npy"))
    paths = [source.describe(index) for index in range(len(source))]
    labels = source.labels
    names = None
    if labels is not None and source.classes is not None:
        names = [source.classes[label] for label in labels]
    if kind == ".npz":
        arrays = {"path": np.array(paths), "embedding": np.concatenate([np.load(f) for f in files])}
        with aside.open("wb") as file:
            np.savez(file, **arrays, **({} if names is None else {"label": np.array(names)}))  # type: ignore[arg-type]
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = np.load(files[0], mmap_mode="r").shape[1]
    fields = [("path", pa.string()), ("embedding", pa.list_(pa.float32(), width))]
    if names is not None:
        fields.insert(1, ("label", pa.string()))
    schema = pa.schema(fields, {"writer": mark("embed")})
    with pq.ParquetWriter(aside, schema) as writer:
        start = 0
        for part in files:
            rows = np.load(part)
            end = start + len(rows)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), width)
            columns = [pa.array(paths[start:end]), vectors]
            if names is not None:
                columns.insert(1, pa.array(names[start:end]))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            start = end


def _need_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise UserError(
            "A .parquet file needs pyarrow: pip install 'lewel[parquet]', or write .npz."
        )
