"""`lewel import`."""

from pathlib import Path
from typing import Annotated

from lewel.cli.output import command, say
from lewel.cli.parameters import All
from lewel.config.commands import ImportConfig
from lewel.progress import plain_console

Config = Annotated[ImportConfig, All]
DEFAULT = ImportConfig()


def import_(file: Path, /, *, out: Path | None = None, config: Config = DEFAULT) -> None:
    """Import a third-party checkpoint as a backbone that every command takes.

    Parameters
    ----------
    file
        A .pth, .pt or .safetensors file. One that would run code is refused.
    out
        The new folder; by default runs/NAME of the file.
    """
    from lewel.tasks import import_ as task

    done = task.import_(file, config, out)
    network = done.network
    lines = [
        f"wrote {done.folder / 'backbone.safetensors'} and card.json: {network.name}, "
        f"{network.stem} stem, width {network.width}, for images of {network.image_size} px"
    ]
    if done.initialised:
        lines.append(
            f"{len(done.initialised)} of its {done.tensors} tensors were not in {file} and are "
            f"randomly initialised: {', '.join(done.initialised)}"
        )
    if network.stem != "imagenet" and config.stem is None:
        lines.append("The file can't tell the stride of its 3x3 stem: --stem medium if it is 2.")
    say(
        plain_console(),
        *lines,
        "next:",
        command("knn", done.folder, "--data", "cifar10", note="evaluate it"),
        command("export", done.folder, "--to", "onnx", note="for other programs"),
    )
