"""`lewel embed`."""

from pathlib import Path
from typing import Literal

from rich.console import Console

from lewel.cli.output import say
from lewel.cli.parameters import Backbone, Positive, Whole


def embed(
    backbone: Backbone,
    data: str,
    /,
    *,
    out: Path | None = None,
    image_size: Positive | None = None,
    network: str | None = None,
    limit: Positive | None = None,
    batch_size: Positive = 256,
    workers: Whole | None = None,
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> None:
    """Write the features of every image to a file; run the same command to resume.

    Parameters
    ----------
    data
        A folder of images, a list, a data set's name, `scenes`, or packed data.
    out
        A .parquet or .npz file; by default features.npz in the run folder, or here.
    image_size
        Side of the images in pixels; by default the backbone's own.
    network
        The architecture of a third-party checkpoint, where it is no ResNet: timm/NAME.
    limit
        Use only so many images.
    batch_size
        Images at a time.
    workers
        Processes that read images.
    accelerator
        Device type.
    """
    from lewel.tasks import embed as task

    console = Console()
    done = task.embed(
        backbone,
        data,
        out,
        image_size=image_size,
        backbone=network,
        limit=limit,
        batch_size=batch_size,
        workers=workers,
        accelerator=accelerator,
        console=console,
    )
    say(console, f"wrote the features of {done.images:,} images to {done.file}")
