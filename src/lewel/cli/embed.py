"""`lewel embed`."""

from pathlib import Path
from typing import Annotated

from lewel.cli.output import say
from lewel.cli.parameters import All, Backbone
from lewel.config.commands import EmbedConfig
from lewel.progress import plain_console

Config = Annotated[EmbedConfig, All]
DEFAULT = EmbedConfig()


def embed(
    backbone: Backbone, data: str, /, *, out: Path | None = None, config: Config = DEFAULT
) -> None:
    """Write the features of every image of all splits to a file; run the same command to resume.

    Parameters
    ----------
    data
        A folder of images, a list, a data set's name, `scenes`, or packed data.
    out
        A .parquet or .npz file; by default features.npz in the run folder, or here.
    """
    from lewel.tasks import embed as task

    console = plain_console()
    done = task.embed(backbone, data, config, out, console)
    splits = ", ".join(f"{split} {images:,}" for split, images in done.splits.items())
    say(console, f"wrote the features of {done.images:,} images ({splits}) to {done.file}")
