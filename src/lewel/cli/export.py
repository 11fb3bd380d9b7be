"""`lewel export`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from lewel.cli.output import say
from lewel.cli.parameters import Backbone, Flag, Positive


def export(
    run: Backbone,
    /,
    *,
    to: Literal["torchvision", "timm", "detectron2", "mmseg", "onnx", "torch-export"],
    out: Path | None = None,
    backbone: str | None = None,
    image_size: Positive | None = None,
    opset: int = 18,
    partial: Flag = False,
    untrained: Annotated[bool, Parameter(alias="--random-init", negative=())] = False,
) -> None:
    """Export a backbone to another project's format; it is loaded back and compared.

    Parameters
    ----------
    to
        The project or format; detectron2 and mmseg get a config beside the weights.
    out
        A file or a folder; by default export/ in the run folder.
    backbone
        The architecture of a third-party checkpoint, where it is no ResNet: timm/NAME.
    image_size
        Side of the images of onnx and torch-export; by default the backbone's own.
    opset
        The operator set of an ONNX file.
    partial
        Load a checkpoint that fits only a part of the network.
    untrained
        Export the randomly initialised network.
    """
    from lewel.tasks import export as task

    with Console(stderr=True).status(f"exporting to {to}"):
        done = task.export(
            run,
            to,
            out=out,
            backbone=backbone,
            image_size=image_size,
            opset=opset,
            partial=partial,
            untrained=untrained,
        )
    say(
        Console(),
        f"wrote {' and '.join(map(str, done.files))}: {done.compared}",
        "load it:",
        *(f"  {line}" for line in done.loading),
    )
