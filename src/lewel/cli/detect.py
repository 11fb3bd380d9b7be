"""`lewel detect`."""

from typing import TYPE_CHECKING, Annotated, Any

from lewel.cli.output import saved, say, show_dense_plan, where_and_next
from lewel.cli.parameters import All, Backbone, DryRun, Recipe, ResultsFolder, with_recipe
from lewel.config.evaluate import DetectConfig
from lewel.progress import plain_console

if TYPE_CHECKING:
    from lewel.tasks.outcome import Detected

Config = Annotated[DetectConfig, All]


def detect(
    backbone: Backbone,
    /,
    *,
    config: Config,
    recipe: Recipe = None,
    out: ResultsFolder = None,
    dry_run: DryRun = False,
) -> None:
    """Evaluate a backbone by object detection (Faster R-CNN, Mask R-CNN)."""
    from lewel.tasks import detect as task

    config = with_recipe(config, recipe)
    if dry_run:
        show_dense_plan(config, lambda: task.describe(backbone, config, out))
    else:
        console = plain_console()
        say(console, *lines_of(task.detect(backbone, config, out, console)))


def lines_of(found: "Detected") -> list[str]:
    """The result, its file, and the next command."""
    numbers = found.numbers
    lines = [
        f"detect on {found.data}: {precisions(numbers)} ({numbers['rule']}), "
        f"{found.images:,} images"
    ]
    if "mask" in numbers:
        lines.append(f"masks: {precisions(numbers['mask'])} (COCO)")
    for rule, others in numbers.get("by_rule", {}).items():
        lines.append(f"VOC, {rule} AP: {precisions(others)}")
    if "by_lr" in numbers:
        each = ", ".join(f"{rate}: {100 * ap:.1f}" for rate, ap in numbers["by_lr"].items())
        lines.append(f"AP by lr {each}; reported is the best on {numbers['selected_on']}")
    if numbers.get("pictures"):
        folder = found.file.parent.parent / "predictions"
        lines.append(f"wrote {len(numbers['pictures'])} pictures to {folder}")
    return [*lines, *saved(found), *where_and_next(found.file)]


def precisions(numbers: dict[str, Any]) -> str:
    """AP, AP50 and AP75 in percent."""
    return ", ".join(f"{name} {100 * numbers[name]:.1f}" for name in ("AP", "AP50", "AP75"))
