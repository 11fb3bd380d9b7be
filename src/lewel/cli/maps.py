"""`lewel maps`."""

from pathlib import Path
from typing import Annotated

from lewel.cli.output import command, say
from lewel.cli.parameters import All, Run
from lewel.config.commands import MapsConfig
from lewel.progress import plain_console

Config = Annotated[MapsConfig, All]
DEFAULT = MapsConfig()


def maps(run: Run, /, *images: str, out: Path | None = None, config: Config = DEFAULT) -> None:
    """Draw the alignment maps of a run as heat maps over images and their views.

    Parameters
    ----------
    images
        Files of images, or a folder, a list, a data set's name, or `scenes`.
    out
        The folder to write to; by default maps in the run folder.
    """
    from lewel.tasks import maps as task

    console = plain_console()
    with console.status("computing maps"):
        done = task.maps(run, list(images), config, out, lambda text: say(console, text))
    gallery = done.gallery
    many = f"{len(gallery.images):,} images" + (
        f" (--limit {config.limit})" if len(gallery.images) == config.limit else ""
    )
    say(
        console,
        f"{many}, {len(gallery.chosen)} maps: {gallery.rule}. {gallery.caption}",
        *([gallery.note] if gallery.note else []),
        *(f"wrote {path}" for path in done.files),
        "next:",
        command("where", run, "--data", "scenes", note="or VOCdevkit/VOC2012: numbers"),
    )
