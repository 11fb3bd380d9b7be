"""`lewel pack`."""

from typing import Annotated

from lewel.cli.output import command, say
from lewel.cli.parameters import All, Flag
from lewel.config.commands import PackConfig
from lewel.errors import UserError
from lewel.progress import plain_console

Config = Annotated[PackConfig, All]
DEFAULT = PackConfig()


def pack(
    source: str, out: str | None = None, /, *, check: Flag = False, config: Config = DEFAULT
) -> None:
    """Pack images into shards that are read fast; run the same command to resume or repair.

    Parameters
    ----------
    source
        A folder of images, a list, a data set's name, `scenes`, packed data, a URL of plain images,
        or WebDataset's tars (a folder, a URL, or a pattern such as `train-{000..099}.tar`).
    out
        The folder or URL that the shards go to, in WebDataset's tar format.
    check
        Only compare the shards of SOURCE (a folder or a URL) with their checksums.
    """
    from lewel.data.pack.urls import shown
    from lewel.tasks import pack as task

    console = plain_console()
    if check:
        if out is not None:
            raise UserError(f"--check takes one folder of packed data, not also {shown(out)}.")
        found = task.check(source, config, console)
        about = f"{found.shards:,} shards, {found.images:,} images"
        say(console, f"{shown(source)} is intact: {about}")
        return
    if out is None:
        raise UserError("Where to? Give a folder or URL for the shards: lewel pack SOURCE OUT.")
    try:
        done = task.pack(source, out, config, console)
    except KeyboardInterrupt:
        say(console, "stopped: run the same command to resume")
        raise
    out = shown(out)
    lines = [
        f"packed {done.images:,} images into {out} "
        f"(shards: {done.shards:,}, {done.bytes / 1e6:,.1f} MB)"
    ]
    if done.corrupt:
        lines.append(f"corrupt and left out: {done.corrupt:,} ({out}/corrupt_images.jsonl)")
    say(console, *lines, "next:", command("pretrain", out), command("pack", "--check", out))
