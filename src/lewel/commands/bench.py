"""Commands that measure: bench step, bench data, bench scale."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console

from lewel.commands import Positive

bench = App(name="bench", help_format="markdown")

NEXT = {
    "step": "  lewel bench step",
    "data": "  lewel bench data FOLDER",
    "scale": "  lewel bench scale",
}
Out = Annotated[Path, Parameter(help="The folder that results and plots go to.")]
Rounds = Annotated[Positive, Parameter(help="How often each contender is timed, in turns.")]
Threads = Annotated[Positive | None, Parameter(help="Processor threads; by default one a core.")]
Markdown = Annotated[
    Path | None, Parameter(help="Put the table into this Markdown file, in place of an older one.")
]


@bench.command
def step(
    *,
    backbone: str = "resnet18",
    stem: Literal["imagenet", "medium", "small"] = "imagenet",
    width: Positive = 64,
    image_size: Positive = 64,
    batch_size: Positive = 64,
    hidden: Positive = 4096,
    dim: Positive = 256,
    aligned_dim: Positive | None = None,
    groups: Positive = 4,
    queue: Positive = 4096,
    statistics: Literal["ema", "eman"] = "eman",
    optimizer: Literal["sgd", "lars"] = "sgd",
    channels_last: bool | None = None,
    compile: bool = False,
    only: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    data: str | None = None,
    rounds: Rounds = 15,
    processes: Positive = 1,
    threads: Threads = None,
    out: Out = Path("bench"),
    name: str = "step",
    markdown: Markdown = None,
) -> None:
    """Time a training step of each method, of the backbone alone, and of lightly's methods.

    Parameters
    ----------
    backbone
        A ResNet's name, or timm/NAME.
    stem
        A ResNet's first layers.
    width
        Channels of a ResNet's first stage.
    image_size
        Side of the views in pixels.
    batch_size
        Images of a step.
    hidden
        Hidden units of every projector and predictor.
    dim
        d, the size of the global embedding.
    aligned_dim
        c, the size of each aligned embedding; by default as d.
    groups
        h of Eq. 2.
    queue
        Keys in the queue of the contrastive methods.
    statistics
        Batch norm of BYOL's and LEWEL_B's teacher: eman averages its statistics too.
    optimizer
        The same for all.
    channels_last
        Memory layout of our networks; by default from 128 px on, as in a run.
    compile
        Beside ours, time them with backbones compiled by torch.compile.
    only
        Only these: lewel_b, byol, lewel_m, moco_v2, backbone_alone, lightly_byol, ...
    data
        Images that reading is timed on; by default embedded ones, as JPEG files.
    processes
        Do all of it in so many processes, one after another: one differs from the next by where its
        memory comes to lie.
    name
        The results' name, if there are to be several.
    """
    import torch

    from lewel.bench import step as bench_step
    from lewel.bench.workload import Workload
    from lewel.bench.writing import make_folder, markdown_table, print_table, put_section

    console = Console()
    make_folder(out, name)
    work = Workload(
        backbone=backbone,
        stem=stem,
        width=width,
        image_size=image_size,
        batch_size=batch_size,
        hidden=hidden,
        dim=dim,
        aligned_dim=dim if aligned_dim is None else aligned_dim,
        groups=groups,
        queue=queue,
        statistics=statistics,
        optimizer=optimizer,
        channels_last=channels_last,
        compile=compile,
    )
    result = bench_step.bench_step(
        work,
        rounds=rounds,
        processes=processes,
        threads=threads or torch.get_num_threads(),
        console=console,
        only=only or [],
        data=data,
    )
    tables = (
        (bench_step.HEADER, bench_step.step_rows(result)),
        bench_step.process_rows(result),
        bench_step.breakdown_rows(result),
    )
    shown = [(header, rows) for header, rows in tables if rows]
    for header, rows in shown:
        print_table(console, header, rows)
    body = "\n\n".join(markdown_table(header, rows) for header, rows in shown)
    _finish(console, result, out / name, bench_step.plot_steps, markdown, put_section, body)


def _finish(
    console: Console,
    result: dict[str, Any],
    path: Path,
    plot: Any,
    markdown: Path | None,
    put_section: Any,
    body: str,
) -> None:
    """Write JSON, plot and table, and say so."""
    from lewel.bench.writing import write_json

    json_file, picture = path.with_name(path.name + ".json"), path.with_name(path.name + ".png")
    write_json(json_file, result)
    plot(result, picture)
    written = [json_file, picture]
    if markdown is not None:
        title = f"bench {result['bench']}: {result['title']}"
        many, processes = f"{result['rounds']} rounds", result.get("processes", 1)
        many += f" in each of {processes} processes" if processes > 1 else ""
        put_section(markdown, title, f"{body}\n\n{many}.", result["machine"])
        written.append(markdown)
    others = [name for name in NEXT if name != result["bench"]]
    lines = [*(f"wrote {file}" for file in written), "next:", *(NEXT[name] for name in others)]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@bench.command
def data(
    folder: str,
    /,
    *,
    image_size: Positive = 224,
    images: Positive = 100,
    packed: str | None = None,
    rounds: Rounds = 5,
    threads: Threads = 1,
    out: Out = Path("bench"),
    name: str = "data",
    markdown: Markdown = None,
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
    name
        The results' name, if there are to be several.
    """
    from lewel.bench import data as bench_data
    from lewel.bench.writing import make_folder, markdown_table, print_table, put_section

    console = Console()
    make_folder(out, name)
    result = bench_data.bench_data(
        folder,
        image_size=image_size,
        images=images,
        rounds=rounds,
        threads=threads or 1,
        packed=packed,
        console=console,
    )
    rows = bench_data.data_rows(result)
    print_table(console, bench_data.HEADER, rows)
    body = markdown_table(bench_data.HEADER, rows)
    _finish(console, result, out / name, bench_data.plot_data, markdown, put_section, body)


@bench.command
def scale(
    *axes: Literal["image_size", "batch", "maps", "positions", "workers", "ranks"],
    backbone: str = "resnet18",
    stem: Literal["imagenet", "medium", "small"] = "imagenet",
    width: Positive = 64,
    image_size: Positive = 64,
    batch_size: Positive = 32,
    hidden: Positive = 1024,
    dim: Positive = 256,
    groups: Positive = 4,
    data: str | None = None,
    rounds: Rounds = 5,
    threads: Threads = None,
    out: Out = Path("bench"),
    name: str = "scale",
    markdown: Markdown = None,
) -> None:
    """Measure how cost grows with image size, batch, maps and positions, and speed with workers
    and ranks.

    Parameters
    ----------
    axes
        Only these; by default all.
    backbone
        A ResNet's name, or timm/NAME.
    stem
        A ResNet's first layers.
    width
        Channels of a ResNet's first stage.
    image_size
        Side of the views in pixels, from where larger ones are tried.
    batch_size
        Images of a step.
    hidden
        Hidden units of every projector and predictor.
    dim
        d, the number of maps.
    groups
        h of Eq. 2.
    data
        Images that reading is timed on; by default embedded ones, as JPEG files.
    name
        The results' name, if there are to be several.
    """
    import torch

    from lewel.bench import scale as bench_scale
    from lewel.bench.workload import Workload
    from lewel.bench.writing import make_folder, markdown_table, print_table, put_section

    console = Console()
    make_folder(out, name)
    work = Workload(
        backbone=backbone,
        stem=stem,
        width=width,
        image_size=image_size,
        batch_size=batch_size,
        hidden=hidden,
        dim=dim,
        aligned_dim=dim,
        groups=groups,
    )
    result = bench_scale.bench_scale(
        work,
        axes=axes or bench_scale.AXES,
        rounds=rounds,
        threads=threads or torch.get_num_threads(),
        data=data,
        console=console,
    )
    rows = bench_scale.scale_rows(result)
    print_table(console, bench_scale.HEADER, rows)
    body = markdown_table(bench_scale.HEADER, rows)
    _finish(console, result, out / name, bench_scale.plot_scale, markdown, put_section, body)
