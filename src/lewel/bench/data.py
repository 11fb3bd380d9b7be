"""`lewel bench data`: images a second on one core, ours beside torchvision's and lightly's."""

import math
import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torchvision.datasets.folder import IMG_EXTENSIONS

from lewel.backbones import MEAN, STD
from lewel.bench.machine import describe_machine
from lewel.bench.pillow import lightly_views, torchvision_views
from lewel.bench.timing import Bar, interleaved, ratio, spread_of
from lewel.data.files import Files
from lewel.data.loader import TwoViews, finish_views
from lewel.data.sources import Source, Subset, open_data
from lewel.data.views import ViewRecipe
from lewel.errors import UserError
from lewel.files import write_atomically
from lewel.train.allocator import keep_freed_memory

BASE = "torchvision, all"
HEADER = ("two views of an image", "images/s a core", "quartiles", f"x {BASE}")
RECIPES = (ViewRecipe(), ViewRecipe(blur=0.1, solarise=0.2))  # BYOL's two views
BATCH = 32  # images that our views are distorted together, as in a training step
PACKS = ("{}-packed", "{}-shards", "{}/shards")  # where a folder's pack is looked for


def bench_data(
    folder: str,
    *,
    image_size: int,
    images: int,
    rounds: int,
    threads: int,
    packed: str | None,
    console: Console,
) -> dict[str, Any]:
    """Time two views of the same images by each way to make them -> what is written as JSON.

    A round of a contender is one pass over the images. `crop` leaves the photometric part to the
    training device; `all` does it on the same core.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()  # as in a run; the others gain by it too
    machine = describe_machine(threads)
    source = open_data(folder, image_size=image_size, limit=images).unlabelled
    packed = packed or find_pack(folder)
    with tempfile.TemporaryDirectory() as aside:
        contenders = our_readers("lewel, files", source, image_size)
        if packed is not None:
            shards = open_data(packed, image_size=image_size).unlabelled
            same = same_images(source, shards, packed)
            contenders |= our_readers("lewel, packed", same, image_size)
        if link_images(source, Path(aside) / "images"):
            contenders |= torchvision_views(aside, image_size, RECIPES)
            if find_spec("lightly") is not None:
                contenders |= lightly_views(aside, image_size, RECIPES)
        with Bar(console, len(contenders) * (rounds + 1), "bench data") as bar:
            times = interleaved(contenders, rounds, torch.device("cpu"), bar)
    base = BASE if BASE in times else next(iter(times))
    return {
        "bench": "data",
        "title": f"{image_size} px, {len(source):,} images of {source.name}",
        "image_size": image_size,
        "images": len(source),
        "bytes_an_image": mean_bytes(source),
        "packed": packed is not None,
        "machine": machine,
        "rounds": rounds,
        "base": base,
        "readers": {
            name: {
                "images_per_second": len(source) / median(taken) / threads,
                "quartiles": sorted(len(source) / t / threads for t in spread_of(taken)),
                "speedup": ratio(times, base, name),
                "speedup_against": {
                    other: ratio(times, other, name) for other in times if "lewel" not in other
                },
            }
            for name, taken in times.items()
        },
    }


def our_readers(name: str, source: Source, image_size: int) -> dict[str, Callable[[], object]]:
    """Our views of a source: cut only, and distorted too. Each pass is another epoch."""
    dataset = TwoViews(source, RECIPES, image_size, seed=0)
    epochs = count()

    def read(distorts: bool) -> None:
        epoch = next(epochs)
        for start in range(0, len(source), BATCH):
            indices = range(start, min(start + BATCH, len(source)))
            batch = dataset.__getitems__([(epoch, index) for index in indices])
            if batch.bad:
                _, path, reason = batch.bad[0]
                raise UserError(f"{path} can't be read ({reason}): mend or remove it.")
            if distorts:
                finish_views(batch, torch.device("cpu"), MEAN, STD)

    return {f"{name}, crop": lambda: read(False), f"{name}, all": lambda: read(True)}


def same_images(source: Source, shards: Source, packed: str) -> Source:
    """The images of a source as a pack holds them, in the same order."""
    place = {shards.describe(index): index for index in range(len(shards))}
    names = [source.describe(index) for index in range(len(source))]
    if absent := [name for name in names if name not in place]:
        raise UserError(
            f"{packed} lacks {len(absent):,} of the {len(names):,} images, for example "
            f"{absent[0]}: expected the pack of the same folder."
        )
    return Subset(shards, [place[name] for name in names])


def find_pack(folder: str) -> str | None:
    """The packed shards of a folder, where they lie beside it or in it."""
    plain = os.path.expanduser(folder).rstrip("/")
    return next((path for path in (p.format(plain) for p in PACKS) if os.path.isdir(path)), None)


def file_paths(source: Source) -> list[str] | None:
    """The files of a source, where it reads files."""
    indices = range(len(source))
    while isinstance(source, Subset):
        indices = [int(source.indices[index]) for index in indices]  # type: ignore[assignment]
        source = source.source
    if not isinstance(source, Files):
        return None
    return [os.path.join(source.root, source.describe(index)) for index in indices]


def link_images(source: Source, folder: Path) -> bool:
    """Show the same files to torchvision's ImageFolder; False where there are no files."""
    paths = file_paths(source)
    if paths is None:
        return False
    if unknown := [p for p in paths if not p.lower().endswith(IMG_EXTENSIONS)]:
        raise UserError(
            f"torchvision's ImageFolder does not read {unknown[0]}: give a folder without such."
        )
    folder.mkdir()
    digits = len(str(len(paths)))
    for index, path in enumerate(paths):
        (folder / f"{index:0{digits}d}{Path(path).suffix}").symlink_to(path)
    return True


def mean_bytes(source: Source) -> int | None:
    """The mean size of a file."""
    paths = file_paths(source)
    return None if paths is None else math.ceil(sum(map(os.path.getsize, paths)) / len(paths))


def data_rows(result: dict[str, Any]) -> list[list[str]]:
    """The rows under HEADER."""
    return [
        [
            name,
            f"{row['images_per_second']:.1f}",
            "-".join(f"{value:.1f}" for value in row["quartiles"]),
            f"{row['speedup']:.2f}",
        ]
        for name, row in result["readers"].items()
    ]


def plot_data(result: dict[str, Any], path: Path) -> None:
    """Images a second as bars."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.5 * len(result["readers"]) + 1.5), layout="constrained")
    axes = figure.subplots()
    names = list(result["readers"])
    values = [result["readers"][name]["images_per_second"] for name in names]
    axes.barh(names, values, color=["tab:blue" if "lewel" in n else "tab:grey" for n in names])
    axes.invert_yaxis()
    axes.set_xlabel("images a second on one core, two views each")
    axes.set_title(result["title"])
    write_atomically(path, lambda aside: figure.savefig(aside, format="png", dpi=120))
