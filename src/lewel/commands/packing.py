"""The command that packs data once, for speed."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from lewel.commands import Whole
from lewel.errors import UserError


def pack(
    source: str,
    out: str | None = None,
    /,
    *,
    size: int = 256,
    quality: int = 92,
    keep: Annotated[bool, Parameter(negative=())] = False,
    shard_images: int = 8192,
    seed: int = 0,
    workers: Whole | None = None,
    check: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Pack images into shards that are read fast; the same command again goes on, or mends.

    Parameters
    ----------
    source
        A folder of images, a list, a data set's name, `scenes`, or packed data.
    out
        The folder that the shards go into, in WebDataset's tar format.
    size
        Pixels of the shorter side; images that are smaller stay as they are.
    quality
        Quality of the JPEGs.
    keep
        Keep the files as they are, of any size; arrays and scenes as PNG, without loss.
    shard_images
        Images in a shard.
    seed
        Decides the order that the images are stored in.
    workers
        Processes that encode images; by default one for each core.
    check
        Only compare the shards of SOURCE (a folder or a URL) with their checksums.
    """
    console = Console()
    if check:
        _check(source, out, console)
        return
    if out is None:
        raise UserError("Where to? Give a folder for the shards: lewel pack SOURCE OUT.")
    if "://" in out:
        raise UserError(f"{out} is a URL: pack into a folder and copy it there; it is read there.")
    from lewel.data.encoding import Encoding
    from lewel.data.loader import cores
    from lewel.packing.writing import Packing, Settings

    settings = Settings(Encoding(size, quality, keep), shard_images, seed)
    packing = Packing(source, Path(out).expanduser(), settings, console)
    try:
        beside = cores() if cores() > 1 else 0  # one core encodes in this process
        index = packing.run(beside if workers is None else workers)
    except KeyboardInterrupt:
        console.print("stopped: run the same command again to go on")
        raise
    shards = [shard for listed in index.shards.values() for shard in listed]
    megabytes = sum(shard.bytes for shard in shards) / 1e6
    lines = [
        f"packed {sum(shard.images for shard in shards):,} images into {out} "
        f"(shards: {len(shards):,}, {megabytes:,.1f} MB)"
    ]
    if packing.bad:
        lines.append(f"not readable and left out: {len(packing.bad):,} ({out}/bad_images.jsonl)")
    lines.append(f"next:\n  lewel pretrain {out}\n  lewel pack --check {out}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _check(place: str, out: str | None, console: Console) -> None:
    from lewel.packing.checking import check

    if out is not None:
        raise UserError(f"--check takes one folder of packed data, not also {out}.")
    index = check(place, console)
    counts = [shard.images for listed in index.shards.values() for shard in listed]
    word = f"{place} is whole: {len(counts):,} shards, {sum(counts):,} images"
    console.print(word, highlight=False, markup=False, soft_wrap=True)
