"""`lewel pack`: images once into shards that are read fast."""

import json
import re
from typing import NamedTuple

from rich.console import Console

from lewel.config.commands import PackConfig
from lewel.data.pack import check as checking
from lewel.data.pack.encoding import Encoding
from lewel.data.pack.format import ANNOTATIONS, Index
from lewel.data.pack.storage import Storage
from lewel.data.pack.upload import open_target
from lewel.data.pack.urls import is_url, shown
from lewel.data.pack.write import Packing, Settings
from lewel.data.sources.to_pack import ToPack, open_to_pack
from lewel.errors import UserError
from lewel.files import refuse_within, user_path
from lewel.ops.ranks import gather_objects
from lewel.progress import plain_console
from lewel.train.devices import open_fabric, placement
from lewel.train.lost_ranks import WatchedRanks
from lewel.train.resume import refuse_different_ranks

LOST = 10.0  # minutes without an answer after which a rank is given up


class PackedShards(NamedTuple):
    """What is in a folder of packed data."""

    folder: str
    images: int
    shards: int
    bytes: int
    corrupt: int  # images that were left out

    @classmethod
    def of(cls, folder: str, index: Index, corrupt: int = 0) -> "PackedShards":
        """The counts of an index."""
        shards = [shard for listed in index.shards.values() for shard in listed]
        annotations = index.shards.get(ANNOTATIONS, [])
        images = sum(s.images for s in shards) - sum(s.images for s in annotations)
        return cls(folder, images, len(shards), sum(s.bytes for s in shards), corrupt)


def pack(source: str, out: str, config: PackConfig, console: Console | None = None) -> PackedShards:
    """Pack any data into a folder or a URL, resume an earlier call, or repair damaged shards."""
    refuse_inside(out, source)
    storage = Storage(config.storage_timeout)
    place = placement(None, None)
    open_fabric(place, "cpu", "32", False).launch()  # joins what torchrun or srun has started
    with WatchedRanks(LOST):
        target = open_target(out, storage)
        opened = open_to_pack(source, config.size, storage, config.images_only)
        packing = Packing(opened, target, settings_of(config, opened), console or plain_console())
        refuse_different_ranks(json.dumps(packing.manifest))
        beside = place.cores if place.cores > 1 else 0  # one core encodes in this process
        index = packing.run(beside if config.workers is None else config.workers)
        # Other nodes may not see the index at once.
        mine = [] if index is None else [PackedShards.of(target.shown, index, len(packing.corrupt))]
        return gather_objects(mine)[0]


def settings_of(config: PackConfig, opened: ToPack) -> Settings:
    """The settings of the shards; images with masks or boxes stay as they are, to fit them."""
    for name in ("size", "quality"):
        given, usual = getattr(config, name), PackConfig.model_fields[name].default
        if opened.folder is not None and given != usual:
            raise UserError(
                f"--{name} {given} changes images, whose masks or boxes would not fit any more: "
                "leave it out, or give --images-only."
            )
    keep = config.keep or opened.folder is not None
    encoding = Encoding(config.size, config.quality, keep)
    return Settings(encoding, config.shard_images, config.seed)


def refuse_inside(out: str, source: str) -> None:
    """Raise UserError for a target in the data itself."""
    inner, outer = (re.sub("/+", "/", f"{shown(one)}/") for one in (out, source))
    if is_url(out) and is_url(source):
        if inner.startswith(outer):
            raise UserError(
                f"{shown(out)} lies in the data {shown(source)}, and would become a part of it: "
                "choose another place."
            )
        return
    here, data = out.removeprefix("file://"), source.removeprefix("file://")
    if not is_url(here) and not is_url(data):
        refuse_within(user_path(here), data)


def check(
    place: str, config: PackConfig | None = None, console: Console | None = None
) -> PackedShards:
    """Compare the shards of a folder or URL with their checksums."""
    storage = Storage((config or PackConfig()).storage_timeout)
    found = checking.check(place, console or plain_console(), storage)
    return PackedShards.of(shown(place), found)
