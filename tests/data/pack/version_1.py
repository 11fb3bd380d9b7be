"""Writes the index of a pack as version 0.1 did, from today's."""

import hashlib
import json
from pathlib import Path

import numpy as np

from lewel.data.pack.format import INDEX, SAMPLES
from lewel.data.pack.tables import TABLES

Arrays = dict[str, np.ndarray]


def as_version_1(folder: Path) -> Path:
    """Replace the tables of a pack by lewel-samples.npz."""
    about = json.loads((folder / INDEX).read_text())
    content = (folder / TABLES).read_bytes()
    arrays: Arrays = {}
    for split, shards in about["shards"].items():
        columns: dict[str, list[np.ndarray]] = {}
        shift = 0
        for shard in shards:
            rows, names = (
                content[start:end] for start, end, _ in (shard.pop("table"), shard.pop("names"))
            )
            count = shard["images"]
            ends = np.frombuffer(names[: 8 * count], np.int64)
            parts = {
                "offsets": np.frombuffer(rows[: 8 * count], np.int64),
                "sizes": np.frombuffer(rows[8 * count : 12 * count], np.uint32).astype(np.int64),
                "checksums": np.frombuffer(rows[12 * count :], np.uint32),
                "ends": ends + shift,
                "names": np.frombuffer(names[8 * count :], np.uint8),
            }
            shift += int(ends[-1])
            for key, values in parts.items():
                columns.setdefault(key, []).append(values)
        arrays |= {f"{split}/{key}": np.concatenate(parts) for key, parts in columns.items()}
        if about["labels"][split] is not None:
            start, end, _ = about["labels"][split]
            arrays[f"{split}/labels"] = np.frombuffer(content[start:end], np.int64)
    del about["labels"]
    (folder / INDEX).write_text(json.dumps({**about, "version": 1, "samples": {}}))
    (folder / TABLES).unlink()
    write_samples(folder, arrays)
    return folder


def write_samples(folder: Path, arrays: Arrays) -> None:
    """Write the tables of version 1, with the right checksum in the index."""
    with (folder / SAMPLES).open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    digest = hashlib.sha256((folder / SAMPLES).read_bytes()).hexdigest()
    about = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**about, "samples": {"sha256": digest}}))
