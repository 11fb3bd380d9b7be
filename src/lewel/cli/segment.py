"""`lewel segment`."""

from typing import TYPE_CHECKING, Annotated

from lewel.cli.output import saved, say, show_dense_plan, where_and_next
from lewel.cli.parameters import All, Backbone, DryRun, Recipe, ResultsFolder, with_recipe
from lewel.config.evaluate import SegmentConfig
from lewel.progress import plain_console

if TYPE_CHECKING:
    from lewel.tasks.outcome import Segmented

Config = Annotated[SegmentConfig, All]


def segment(
    backbone: Backbone,
    /,
    *,
    config: Config,
    recipe: Recipe = None,
    out: ResultsFolder = None,
    dry_run: DryRun = False,
) -> None:
    """Evaluate a backbone by semantic segmentation with a dilated FCN."""
    from lewel.tasks import segment as task

    config = with_recipe(config, recipe)
    if dry_run:
        show_dense_plan(config, lambda: task.describe(backbone, config, out))
    else:
        console = plain_console()
        say(console, *lines_of(task.segment(backbone, config, out, console)))


def lines_of(found: "Segmented") -> list[str]:
    """The result, its file, and the next command."""
    numbers, (low, high) = found.numbers, found.interval
    each = ", ".join(f"{name} {value:.1%}" for name, value in found.per_class.items())
    lines = [
        f"segment on {found.data}: mIoU {found.miou:.1%} (95 % {low:.1%} - {high:.1%}), "
        f"pixel accuracy {numbers['pixel_accuracy']:.1%}, {found.images:,} images, output "
        f"stride {numbers['output_stride']}, lr {numbers['lr']:g}",
        f"by class: {each}",
    ]
    if "by_lr" in numbers:
        tried = ", ".join(f"{rate}: {value:.1%}" for rate, value in numbers["by_lr"].items())
        lines.append(f"the best of these learning rates, on {numbers['selected_on']}: {tried}")
    if numbers["pictures"]:
        first = found.file.parent.parent / numbers["pictures"][0]
        lines.append(f"wrote {len(numbers['pictures'])} pictures such as {first}")
    return [*lines, *saved(found), *where_and_next(found.file)]
