"""`lewel maps`."""

from pathlib import Path
from typing import Literal

from rich.console import Console

from lewel.cli.output import program, say
from lewel.cli.parameters import Positive, Run


def maps(
    run: Run,
    /,
    *images: str,
    n: int = 8,
    rule: Literal["peaked", "consistent", "different"] = "different",
    limit: Positive = 12,
    image_size: Positive | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Draw the alignment maps of a run as heat maps over images and their views.

    Parameters
    ----------
    images
        Files of images, or a folder, a list, a data set's name, or `scenes`.
    n
        So many maps.
    rule
        Which maps: the most peaked, the most consistent over both views, or the most different.
    limit
        At most so many images.
    image_size
        Side of the views in pixels; by default the run's own. Larger ones have finer maps.
    seed
        Decides the views.
    out
        The folder to write to; by default maps in the run folder.
    """
    from lewel.tasks import maps as task

    console = Console()
    with console.status("computing maps"):
        done = task.maps(
            run,
            list(images),
            n=n,
            rule=rule,
            seed=seed,
            limit=limit,
            image_size=image_size,
            out=out,
        )
    gallery = done.gallery
    many = f"{len(gallery.images):,} images" + (
        f" (--limit {limit})" if len(gallery.images) == limit else ""
    )
    say(
        console,
        f"{many}, {len(gallery.chosen)} maps: {gallery.rule}.",
        *([gallery.note] if gallery.note else []),
        *(f"wrote {path}" for path in done.files),
        f"next:\n  {program()} where {run} --data scenes    # or VOCdevkit/VOC2012: numbers",
    )
