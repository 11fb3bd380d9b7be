"""Commands that exchange weights with other projects: export and import."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from lewel.commands import Positive

Flag = Annotated[bool, Parameter(negative=())]


def export(
    run: str,
    /,
    *,
    to: Literal["torchvision", "timm", "detectron2", "mmseg", "onnx", "torch-export"],
    out: Path | None = None,
    backbone: str | None = None,
    image_size: Positive | None = None,
    opset: int = 18,
    partial: Flag = False,
    untrained: Flag = False,
) -> None:
    """Write a backbone in another project's format, and load it back to compare.

    Parameters
    ----------
    run
        A run folder, a file of weights, or a network's name.
    to
        The project or format; detectron2 and mmseg get a config beside the weights.
    out
        A file or a folder; by default export/ in the run folder.
    backbone
        Which network a foreign file of weights holds.
    image_size
        Side of the images of onnx and torch-export; by default the backbone's own.
    opset
        The operator set of an ONNX file.
    partial
        Take weights that fit only a part of the network.
    untrained
        Export the network with fresh weights.
    """
    from lewel.exporting import export as write

    console = Console()
    with Console(stderr=True).status(f"exporting to {to}"):
        done = write(
            run,
            to,
            out=out,
            backbone=backbone,
            image_size=image_size,
            opset=opset,
            partial=partial,
            untrained=untrained,
        )
    _say(
        console,
        f"wrote {' and '.join(map(str, done.files))}: {done.compared}",
        "load it:",
        *(f"  {line}" for line in done.loading),
    )


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
    """Turn another project's checkpoint into a backbone that every command takes.

    Parameters
    ----------
    file
        A .pth, .pt or .safetensors file. One that would run code is refused.
    out
        The new folder; by default runs/NAME of the file.
    backbone
        Which network the file holds, where it is no ResNet (timm/NAME).
    stem
        How a ResNet begins: a 3x3 convolution may have stride 2 (medium) or 1 (small, assumed).
    image_size
        Side of the images that it was trained on, 224 by default.
    partial
        Take weights that fit only a part of the network.
    """
    from lewel.card import program
    from lewel.importing import import_weights

    done = import_weights(
        file, out=out, backbone=backbone, stem=stem, image_size=image_size, partial=partial
    )
    network, console = done.network, Console()
    lines = [
        f"wrote {done.folder / 'backbone.safetensors'} and card.json: {network.name}, "
        f"{network.stem} stem, width {network.width}, for images of {network.image_size} px"
    ]
    if done.fresh:
        lines.append(
            f"{len(done.fresh)} of its {done.tensors} tensors were not in {file} and have fresh "
            f"weights: {', '.join(done.fresh)}"
        )
    if network.stem != "imagenet" and stem is None:
        lines.append("The file can't tell the stride of its 3x3 stem: --stem medium if it is 2.")
    lines += [
        "next:",
        f"  {program()} knn {done.folder} --data cifar10    # judge it",
        f"  {program()} export {done.folder} --to onnx    # for other programs",
    ]
    _say(console, *lines)


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
