"""`lewel bench step`, `lewel bench data` and `lewel bench scale`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console

from lewel.cli.output import say
from lewel.cli.parameters import All, Flag, Positive
from lewel.config.commands import OVERWRITE
from lewel.progress import plain_console

if TYPE_CHECKING:
    from lewel.bench.workload import Workload

bench = App(name="bench", help_format="markdown")

NEXT = {
    "step": "  lewel bench step",
    "data": "  lewel bench data FOLDER",
    "scale": "  lewel bench scale",
}


def about(text: str) -> Parameter:
    """What a flag is."""
    return Parameter(help=text)


@dataclass(frozen=True)
class Output:
    """How often is timed, and where results go."""

    rounds: Annotated[Positive, about("How often each entry is timed, in turns.")] = 5
    threads: Annotated[Positive | None, about("CPU threads; by default one a core.")] = None
    out: Annotated[Path, about("The folder that results and plots go to.")] = Path("bench")
    name: Annotated[str | None, about("The results' name, if there are to be several.")] = None
    markdown: Annotated[
        Path | None, about("Put the table into this Markdown file, in place of an older one.")
    ] = None
    overwrite: Annotated[Flag, about(OVERWRITE)] = False


@dataclass(frozen=True)
class StepOutput(Output):
    """Steps are timed more often."""

    rounds: Annotated[Positive, about("How often each entry is timed, in turns.")] = 15


@dataclass(frozen=True)
class DataOutput(Output):
    """Reading is timed on one core."""

    threads: Annotated[Positive | None, about("CPU threads.")] = 1


@dataclass(frozen=True)
class Sizes:
    """What a step is measured on."""

    backbone: Annotated[str, about("A ResNet's name, or timm/NAME.")] = "resnet18"
    stem: Annotated[Literal["imagenet", "medium", "small"], about("A ResNet's first layers.")] = (
        "imagenet"
    )
    width: Annotated[Positive, about("Channels of a ResNet's first stage.")] = 64
    image_size: Annotated[Positive, about("Side of the views in pixels.")] = 64
    batch_size: Annotated[Positive, about("Images of a step.")] = 64
    hidden: Annotated[Positive, about("Hidden units of every projector and predictor.")] = 4096
    dim: Annotated[Positive, about("d, the size of the global embedding.")] = 256
    aligned_dim: Annotated[
        Positive | None, about("c, the size of each aligned embedding; by default d.")
    ] = None
    groups: Annotated[Positive, about("h of Eq. 2.")] = 4

    def workload(self, **more: Any) -> "Workload":
        """The same with all that a step takes."""
        from lewel.bench.workload import Workload

        given = asdict(self)
        given["aligned_dim"] = self.dim if self.aligned_dim is None else self.aligned_dim
        return Workload(**given, **more)


@dataclass(frozen=True)
class ScaleSizes(Sizes):
    """Smaller: many sizes are timed."""

    batch_size: Annotated[Positive, about("Images of a step.")] = 32
    hidden: Annotated[Positive, about("Hidden units of every projector and predictor.")] = 1024


@bench.command
def step(
    *,
    sizes: Annotated[Sizes, All] = Sizes(),  # noqa: B008
    queue: Positive = 4096,
    statistics: Literal["ema", "eman"] = "eman",
    optimizer: Literal["sgd", "lars"] = "sgd",
    channels_last: bool | None = None,
    compile: bool = False,
    only: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    data: str | None = None,
    processes: Positive = 1,
    output: Annotated[StepOutput, All] = StepOutput(),  # noqa: B008
) -> None:
    """Time a training step of each method, of the backbone alone, and of lightly's methods.

    Parameters
    ----------
    queue
        Keys in the queue of the contrastive methods.
    statistics
        Batch norm of the teachers of BYOL and LEWEL_B: eman averages its statistics too.
    optimizer
        The same for all.
    channels_last
        Memory layout of our networks; by default from 128 px on, as in a run.
    compile
        Also time ours with backbones compiled by torch.compile.
    only
        Only these: any method, backbone_alone, lightly_byol, ...
    data
        Images that reading is timed on; by default embedded ones, as JPEG files.
    processes
        Repeat all of it in so many processes: memory placement differs between them.
    """
    from lewel.bench import step as task
    from lewel.bench import step_tables as show

    console, begun = begin(output, "step")
    work = sizes.workload(
        queue=queue,
        statistics=statistics,
        optimizer=optimizer,
        channels_last=channels_last,
        compile=compile,
    )
    result = task.bench_step(
        work,
        rounds=output.rounds,
        processes=processes,
        threads=begun,
        console=console,
        only=only or [],
        data=data,
    )
    tables = (
        (show.HEADER, show.step_rows(result)),
        show.process_rows(result),
        show.breakdown_rows(result),
    )
    finish(console, result, output, tables, show.plot_steps)


@bench.command
def data(
    folder: str,
    /,
    *,
    image_size: Positive = 224,
    images: Positive = 100,
    packed: str | None = None,
    output: Annotated[DataOutput, All] = DataOutput(),  # noqa: B008
) -> None:
    """Time two views of images: ours from files and packed shards, torchvision's, lightly's.

    Parameters
    ----------
    folder
        A folder of images.
    image_size
        Side of the views in pixels.
    images
        Use so many images; each round passes over all of them.
    packed
        The pack of the same folder (`lewel pack`); found by itself where it is FOLDER-packed.
    """
    from lewel.bench import data as task

    console, threads = begin(output, "data")
    result = task.bench_data(
        folder,
        image_size=image_size,
        images=images,
        rounds=output.rounds,
        threads=threads,
        packed=packed,
        console=console,
    )
    finish(console, result, output, [(task.HEADER, task.data_rows(result))], task.plot_data)


@bench.command
def scale(
    *axes: Literal["image_size", "batch", "maps", "positions", "workers", "ranks"],
    sizes: Annotated[ScaleSizes, All] = ScaleSizes(),  # noqa: B008
    data: str | None = None,
    output: Annotated[Output, All] = Output(),  # noqa: B008
) -> None:
    """Measure how cost grows with image size, batch, maps and locations, and speed with workers
    and ranks.

    Parameters
    ----------
    axes
        Only these; by default all.
    data
        Images that reading is timed on; by default embedded ones, as JPEG files.
    """
    from lewel.bench import scale as task

    console, threads = begin(output, "scale")
    result = task.bench_scale(
        sizes.workload(),
        axes=axes or task.AXES,
        rounds=output.rounds,
        threads=threads,
        data=data,
        console=console,
    )
    finish(console, result, output, [(task.HEADER, task.scale_rows(result))], task.plot_scale)


def begin(output: Output, name: str) -> tuple[Console, int]:
    """A console and the number of threads; a folder that cannot be written ends it now."""
    import torch

    from lewel.bench.output import check_output

    check_output(output.out, output.name or name, output.overwrite)
    return plain_console(), output.threads or torch.get_num_threads()


def finish(
    console: Console,
    result: dict[str, Any],
    output: Output,
    tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]],
    plot: Callable[[dict[str, Any], Path], None],
) -> None:
    """Print the tables; write JSON, plot and Markdown."""
    from lewel.bench.output import files_of, markdown_table, print_table, put_section, write_json

    shown = [(header, rows) for header, rows in tables if rows]
    for header, rows in shown:
        print_table(console, header, rows)
    name = output.name or result["bench"]
    json_file, picture = files_of(output.out, name)
    write_json(json_file, result)
    plot(result, picture)
    written = [json_file, picture]
    if output.markdown is not None:
        title = f"bench {result['bench']}: {result['title']}"
        many, processes = f"{result['rounds']} rounds", result.get("processes", 1)
        many += f" in each of {processes} processes" if processes > 1 else ""
        body = "\n\n".join(markdown_table(header, rows) for header, rows in shown)
        put_section(output.markdown, title, f"{body}\n\n{many}.", result["machine"])
        written.append(output.markdown)
    others = [line for name, line in NEXT.items() if name != result["bench"]]
    say(console, *(f"wrote {file}" for file in written), "next:", *others)
