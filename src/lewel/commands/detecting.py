"""The command that judges a backbone by detection."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from lewel.commands.judging import Out, Recipe, with_recipe
from lewel.judge_config import DetectConfig


def detect(
    backbone: str,
    /,
    *,
    recipe: Recipe = None,
    out: Out = None,
    config: Annotated[DetectConfig, Parameter(name="*")],
) -> None:
    """Judge a backbone by the boxes, and the masks, that it learns to find.

    Parameters
    ----------
    backbone
        A run folder, a file of weights, or a network's name.
    """
    from lewel.detecting import judge_detected, open_detection
    from lewel.judging import ask

    console, config = Console(), with_recipe(config, recipe)
    answer, path = ask(
        "detect", judge_detected, backbone, config, out, console, opens=open_detection
    )
    if answer:
        for line in lines_of(answer, path):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def lines_of(answer: dict[str, Any], path: Path) -> list[str]:
    """What was found, where it is kept, and what comes next."""
    lines = [
        f"detect on {answer['data']}: {in_words(answer)} ({answer['rule']}), "
        f"{answer['images']:,} images"
    ]
    if "mask" in answer:
        lines.append(f"masks: {in_words(answer['mask'])} (COCO)")
    for rule, numbers in answer.get("by_rule", {}).items():
        lines.append(f"by the {rule} rule: {in_words(numbers)}")
    if "rates" in answer:
        each = ", ".join(f"{rate}: {100 * ap:.1f}" for rate, ap in answer["rates"].items())
        lines.append(f"AP by lr {each}; reported is {answer['chosen']}")
    folder = path.parent.parent
    lines.append(f"wrote {path}")
    if answer.get("pictures"):
        lines.append(f"wrote {len(answer['pictures'])} pictures to {folder / 'predictions'}")
    return [*lines, f"next:\n  lewel results {folder}"]


def in_words(numbers: dict[str, Any]) -> str:
    """Three numbers in percent."""
    return ", ".join(f"{name} {100 * numbers[name]:.1f}" for name in ("AP", "AP50", "AP75"))
