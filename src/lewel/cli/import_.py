"""`lewel import`."""

from pathlib import Path
from typing import Literal

from rich.console import Console

from lewel.cli.output import program, say
from lewel.cli.parameters import Flag, Positive


def import_(
    file: Path,
    /,
    *,
    out: Path | None = None,
    backbone: str | None = None,
    stem: Literal["imagenet", "medium", "small"] | None = None,
    image_size: Positive | None = None,
    partial: Flag = False,
) -> None:
    """Import a third-party checkpoint as a backbone that every command takes.

    Parameters
    ----------
    file
        A .pth, .pt or .safetensors file. One that would run code is refused.
    out
        The new folder; by default runs/NAME of the file.
    backbone
        The architecture of the checkpoint, where it is no ResNet: timm/NAME.
    stem
        How a ResNet begins: a 3x3 convolution may have stride 2 (medium) or 1 (small, assumed).
    image_size
        Side of the images that it was trained on, 224 by default.
    partial
        Load a checkpoint that fits only a part of the network.
    """
    from lewel.tasks import import_ as task

    done = task.import_(
        file, out=out, backbone=backbone, stem=stem, image_size=image_size, partial=partial
    )
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
    if network.stem != "imagenet" and stem is None:
        lines.append("The file can't tell the stride of its 3x3 stem: --stem medium if it is 2.")
    say(
        Console(),
        *lines,
        "next:",
        f"  {program()} knn {done.folder} --data cifar10    # evaluate it",
        f"  {program()} export {done.folder} --to onnx    # for other programs",
    )
