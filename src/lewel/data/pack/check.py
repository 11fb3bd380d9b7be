"""Verifies packed data: every shard against its checksum."""

import hashlib

from rich.console import Console

from lewel.data.pack.format import Index, Shard, read_index
from lewel.data.pack.storage import DEFAULT_STORAGE, Storage
from lewel.data.pack.stores import Extent, Store, open_store
from lewel.data.pack.tables import TABLES, damaged_sections
from lewel.data.pack.urls import shown
from lewel.errors import RunError
from lewel.progress import Bar

READ = 8 * 2**20  # bytes of a shard that are read at once


def check(place: str, console: Console, storage: Storage = DEFAULT_STORAGE) -> Index:
    """Verify all shards in a folder or at a URL; raises RunError with the damaged ones."""
    store = open_store(place, storage)
    place = shown(place)
    index = read_index(store, place)
    shards = [shard for listed in index.shards.values() for shard in listed]
    damaged: list[str] = []
    total = sum(shard.bytes for shard in shards) + sum(s.end - s.start for s in index.sections)
    with Bar(f"checking {place}, bytes", total, console) as bar:
        if wrong := damaged_sections(store, index.sections, bar.advance):
            damaged.append(f"{TABLES} has {wrong:,} wrong checksums")
        for shard in shards:
            if reason := _fault(store, shard, bar):
                damaged.append(f"{shard.file} {reason}")
    if damaged:
        raise RunError(
            f"{len(damaged):,} of the {len(shards):,} shards of {place} are damaged "
            f"({'; '.join(damaged)}): run the same `lewel pack` command again to repair them, "
            "or copy them again."
        )
    return index


def _fault(store: Store, shard: Shard, bar: Bar) -> str:
    """What is wrong with a shard; empty if it is intact."""
    state, position = hashlib.sha256(), 0
    try:
        if (size := store.size(shard.file)) != shard.bytes:
            return f"has {size:,} bytes instead of {shard.bytes:,}"
        while position < shard.bytes:
            extent = Extent(shard.file, position, min(position + READ, shard.bytes))
            state.update(store.read_range(extent))
            bar.advance(extent.end - position)
            position = extent.end
    except FileNotFoundError:
        return "is missing"
    except EOFError:
        return "is truncated"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "" if state.hexdigest() == shard.sha256 else "has a wrong checksum"
