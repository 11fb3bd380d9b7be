"""Whether packed data is whole: every byte of every shard against its checksum."""

import hashlib

from rich.console import Console

from lewel.bars import Bar
from lewel.data.packs import Index, Shard, read_index
from lewel.data.stores import Extent, Store, open_store
from lewel.errors import RunError

READ = 8 * 2**20  # bytes of a shard that are looked at at once


def check(place: str, console: Console) -> Index:
    """Read all shards in a folder or behind a URL; damaged ones end it, each by its name."""
    store = open_store(place)
    index = read_index(store, place)
    shards = [shard for listed in index.shards.values() for shard in listed]
    damaged: list[str] = []
    with Bar(f"checking {place}, bytes", sum(shard.bytes for shard in shards), console) as bar:
        for shard in shards:
            if reason := _look(store, shard, bar):
                damaged.append(f"{shard.file} {reason}")
    if damaged:
        raise RunError(
            f"{len(damaged):,} of the {len(shards):,} shards of {place} are damaged "
            f"({'; '.join(damaged)}): run the same `lewel pack` command again to mend them, or "
            "copy them again."
        )
    return index


def _look(store: Store, shard: Shard, bar: Bar) -> str:
    """What is wrong with a shard; nothing, if all is well."""
    state, position = hashlib.sha256(), 0
    try:
        if (size := store.size(shard.file)) != shard.bytes:
            return f"has {size:,} bytes instead of {shard.bytes:,}"
        while position < shard.bytes:
            extent = Extent(shard.file, position, min(position + READ, shard.bytes))
            data = store.part(extent)
            if len(data) != extent.end - extent.start:
                return "ends too early"
            state.update(data)
            position = extent.end
            bar.advance(len(data))
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "" if state.hexdigest() == shard.sha256 else "has another checksum"
