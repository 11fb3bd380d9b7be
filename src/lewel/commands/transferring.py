"""Commands that judge a backbone by dense prediction: segment."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from lewel.commands.judging import Out, Recipe, with_recipe
from lewel.judge_config import SegmentConfig


def segment(
    backbone: str,
    /,
    *,
    recipe: Recipe = None,
    out: Out = None,
    config: Annotated[SegmentConfig, Parameter(name="*")],
) -> None:
    """Judge a backbone by semantic segmentation: train it on in a dilated FCN.

    Parameters
    ----------
    backbone
        A run folder, a file of weights, or a network's name.
    """
    from lewel import segmenting

    console, config = Console(), with_recipe(config, recipe)
    answer, path = segmenting.segment(backbone, config, out, console)
    if answer:
        _show(console, answer, path)


def _show(console: Console, answer: dict[str, Any], path: Path) -> None:
    """What was found, where it is kept, and what comes next."""
    low, high = answer["interval"]
    each = ", ".join(f"{name} {value:.1%}" for name, value in answer["per_class"].items())
    lines = [
        f"segment on {answer['data']}: mIoU {answer['miou']:.1%} (95 % {low:.1%} - {high:.1%}), "
        f"pixel accuracy {answer['pixel_accuracy']:.1%}, {answer['images']:,} images, output "
        f"stride {answer['output_stride']}, lr {answer['lr']:g}",
        f"by class: {each}",
    ]
    if "search" in answer:
        tried = ", ".join(f"{rate}: {value:.1%}" for rate, value in answer["search"].items())
        lines.append(f"the best of these rates, chosen on {answer['chosen_on']}: {tried}")
    run = path.parent.parent
    lines += [f"wrote {path}"]
    if answer["pictures"]:
        lines += [f"wrote {len(answer['pictures'])} pictures such as {run / answer['pictures'][0]}"]
    lines += [f"next:\n  lewel results {run}"]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
