"""`lewel pack`."""

from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from lewel.cli.output import program, say
from lewel.cli.parameters import Flag, Whole
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
    check: Flag = False,
) -> None:
    """Pack images into shards that are read fast; run the same command to resume or repair.

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
    from lewel.tasks import pack as task

    console = Console()
    if check:
        if out is not None:
            raise UserError(f"--check takes one folder of packed data, not also {out}.")
        found = task.check(source, console)
        say(console, f"{source} is intact: {found.shards:,} shards, {found.images:,} images")
        return
    if out is None:
        raise UserError("Where to? Give a folder for the shards: lewel pack SOURCE OUT.")
    try:
        done = task.pack(
            source,
            out,
            size=size,
            quality=quality,
            keep=keep,
            shard_images=shard_images,
            seed=seed,
            workers=workers,
            console=console,
        )
    except KeyboardInterrupt:
        say(console, "stopped: run the same command to resume")
        raise
    lines = [
        f"packed {done.images:,} images into {out} "
        f"(shards: {done.shards:,}, {done.bytes / 1e6:,.1f} MB)"
    ]
    if done.corrupt:
        lines.append(f"corrupt and left out: {done.corrupt:,} ({out}/corrupt_images.jsonl)")
    lewel = program()
    say(console, *lines, "next:", f"  {lewel} pretrain {out}", f"  {lewel} pack --check {out}")
