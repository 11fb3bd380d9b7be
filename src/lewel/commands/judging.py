"""Commands that judge a backbone: knn, linear, finetune, embed, and the results of them all."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter
from pydantic import ValidationError
from rich.console import Console

from lewel.commands import Positive, Whole
from lewel.config import explain
from lewel.errors import UserError
from lewel.judge_config import FinetuneConfig, JudgeConfig, KnnConfig, LinearConfig

Out = Annotated[Path | None, Parameter(help="Where results go; by default the run folder.")]
Recipe = Annotated[
    str | None, Parameter(help="A recipe by name (`lewel recipes`) or a YAML file; flags override.")
]


def knn(
    backbone: str, /, *, out: Out = None, config: Annotated[KnnConfig, Parameter(name="*")]
) -> None:
    """Judge a backbone by the nearest neighbours of each image among labelled ones.

    Parameters
    ----------
    backbone
        A run folder, a file of weights, or a network's name.
    """
    from lewel.judging import ask, judge_knn

    console = Console()
    answer, path = ask("knn", judge_knn, backbone, config, out, console)
    if answer:
        sweep = ", ".join(f"{k}: {value:.1%}" for k, value in answer["sweep"].items())
        _show(console, answer, path, f"k = {answer['k']}, bank {answer['bank']:,}; by k {sweep}")


def linear(
    backbone: str,
    /,
    *,
    recipe: Recipe = None,
    out: Out = None,
    config: Annotated[LinearConfig, Parameter(name="*")],
) -> None:
    """Judge a backbone by a linear classifier on its frozen features.

    Parameters
    ----------
    backbone
        A run folder, a file of weights, or a network's name.
    """
    from lewel.judging import ask
    from lewel.learning import judge_linear

    console, config = Console(), with_recipe(config, recipe)
    task = "linear_fast" if config.fast else "linear"
    answer, path = ask(task, judge_linear, backbone, config, out, console)
    if answer:
        best = f"rate {answer['rate']:g}, decay {answer['decay']:g}" if config.fast else ""
        _show(console, answer, path, best)


def finetune(
    backbone: str,
    /,
    *,
    recipe: Recipe = None,
    out: Out = None,
    config: Annotated[FinetuneConfig, Parameter(name="*")],
) -> None:
    """Judge a backbone by training it on, with a part of the labels.

    Parameters
    ----------
    backbone
        A run folder, a file of weights, or a network's name.
    """
    from lewel.judging import ask
    from lewel.learning import judge_finetuned

    console, config = Console(), with_recipe(config, recipe)
    answer, path = ask("finetune", judge_finetuned, backbone, config, out, console)
    if answer:
        _show(console, answer, path, f"{answer['labelled']:,} labels")


Judging = TypeVar("Judging", bound=JudgeConfig)


def with_recipe(config: Judging, recipe: str | None) -> Judging:
    """A recipe for judging, then what the user said on top of it."""
    if recipe is None:
        return config
    from lewel.recipes import read_recipe

    given = config.model_dump(exclude_unset=True)
    try:
        return type(config).model_validate({**read_recipe(recipe, "eval"), **given})
    except ValidationError as error:
        raise UserError(explain(error)) from None


def _show(console: Console, answer: dict[str, Any], path: Path, more: str) -> None:
    """What was found, where it is kept, and what comes next."""
    low, high = answer["interval"]
    for line in (
        f"{answer['task']} on {answer['data']}: top-1 {answer['top1']:.1%} (95 % {low:.1%} - "
        f"{high:.1%}), top-5 {answer['top5']:.1%}, {answer['images']:,} images"
        + (f", {more}" if more else ""),
        f"wrote {path}",
        f"next:\n  lewel results {path.parent.parent}",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def results(*runs: Path) -> None:
    """Show the results of one or several runs side by side."""
    from lewel.comparing import results_table

    if not runs:
        raise UserError("Which runs? Give one or several run folders.")
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no edge
    console.print(results_table(list(runs)))


def embed(
    backbone: str,
    data: str,
    /,
    *,
    out: Path | None = None,
    image_size: Positive | None = None,
    network: str | None = None,
    limit: Positive | None = None,
    batch_size: Positive = 256,
    workers: Whole | None = None,
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> None:
    """Write the features of every image to a file; the same command again goes on.

    Parameters
    ----------
    backbone
        A run folder, a file of weights, or a network's name.
    data
        A folder of images, a list, a data set's name, `scenes`, or packed data.
    out
        A .parquet or .npz file; by default features.npz in the run folder, or here.
    image_size
        Side of the images in pixels; by default the backbone's own.
    network
        Which network a foreign file of weights holds.
    limit
        Use only so many images.
    batch_size
        Images at a time.
    workers
        Processes that read images.
    accelerator
        Device type.
    """
    from lewel import embedding

    console = Console()
    out = out or (Path(backbone) if Path(backbone).is_dir() else Path()) / "features.npz"
    written = embedding.embed(
        backbone,
        data,
        out,
        image_size=image_size,
        backbone=network,
        limit=limit,
        batch_size=batch_size,
        workers=workers,
        accelerator=accelerator,
        console=console,
    )
    console.print(f"wrote the features of {written:,} images to {out}", highlight=False)
