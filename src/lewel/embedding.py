"""Features of every image of a data set, written to a file, for other tools."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from lewel.backbones import find_network, open_backbone
from lewel.data.sources import Source, digest, open_data
from lewel.errors import RunError, UserError
from lewel.eval.features import Extractor
from lewel.eval.results import fingerprint
from lewel.files import write_atomically
from lewel.finding import weights_file
from lewel.train.devices import default_workers, open_fabric, placement

PART = 4096  # images between two moments that are safe from a kill
KINDS = (".parquet", ".npz")


def embed(
    what: str,
    data: str,
    out: Path,
    *,
    image_size: int | None = None,
    backbone: str | None = None,
    limit: int | None = None,
    batch_size: int = 256,
    workers: int | None = None,
    accelerator: str = "auto",
    console: Console | None = None,
) -> int:
    """Write path, label and embedding of each image to a .parquet or .npz file -> images written.

    Parts are kept beside the file until it is whole: the same call goes on after a kill.
    """
    if out.suffix not in KINDS:
        raise UserError(f"--out {out} ends in {out.suffix!r}: expected .parquet or .npz.")
    if out.suffix == ".parquet":
        _need_pyarrow()
    network = find_network(what, backbone, image_size)
    fabric = open_fabric(placement(1, 1), accelerator, "32", False)
    source = open_data(data, image_size=network.image_size, limit=limit).unlabelled
    net = open_backbone(what, network).to(fabric.device)
    many = default_workers(fabric.device) if workers is None else workers
    extractor = Extractor(
        net, network.image_size, network.mean, network.std, fabric.device, batch_size, many
    )
    parts = out.with_name(out.name + ".parts")
    _claim(parts, f"{_of(what)} {network} {digest(source)}")
    with Progress(console=console or Console(), transient=True) as progress:
        bar = progress.add_task(f"{len(source):,} images", total=len(source))
        for number, indices in enumerate(_cut(len(source))):
            file = parts / f"{number:06d}.npy"
            if not file.exists():
                rows, readable = extractor.mine(source, indices)
                _refuse_unreadable(source, indices, readable)
                values = rows.numpy()
                write_atomically(file, lambda aside, v=values: _save(aside, v))  # type: ignore[misc]
            progress.update(bar, completed=int(indices[-1]) + 1)
    write_atomically(out, lambda aside: _join(aside, out.suffix, parts, source))
    for file in (*parts.glob("*.npy"), parts / "question"):
        file.unlink()
    parts.rmdir()
    return len(source)


def _of(what: str) -> str:
    file = weights_file(what)
    return what if file is None else fingerprint(file)


def _cut(total: int) -> Iterator[np.ndarray]:
    for start in range(0, total, PART):
        yield np.arange(start, min(start + PART, total))


def _claim(parts: Path, question: str) -> None:
    """Take the folder of parts for this question; parts of another one are not mixed in."""
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{parts} cannot be written: {error.strerror}.") from None
    asked = parts / "question"
    if asked.exists() and asked.read_text() != question:
        raise UserError(f"{parts} holds parts of other features: remove it, or use another --out.")
    asked.write_text(question)


def _refuse_unreadable(source: Source, indices: np.ndarray, readable: torch.Tensor) -> None:
    if not readable.all():
        bad = int(indices[int((~readable).nonzero()[0])])
        raise RunError(
            f"{source.describe(bad)} can't be read: mend or remove it, and run the same command "
            "again to go on."
        )


def _save(aside: Path, values: np.ndarray) -> None:
    with aside.open("wb") as file:  # by name numpy would add its own ending
        np.save(file, values)


def _join(aside: Path, kind: str, parts: Path, source: Source) -> None:
    """All parts as one file, a part at a time where the format allows it."""
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
    with pq.ParquetWriter(aside, pa.schema(fields)) as writer:
        start = 0
        for part in files:
            rows = np.load(part)
            end = start + len(rows)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), width)
            columns = [pa.array(paths[start:end]), vectors]
            if names is not None:
                columns.insert(1, pa.array(names[start:end]))
            writer.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)))
            start = end


def _need_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise UserError(
            "A .parquet file needs pyarrow: pip install 'lewel[parquet]', or write .npz."
        )
