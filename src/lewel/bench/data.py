"""`lewel bench data`: images per second on one core, compared with torchvision and lightly."""

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

from lewel.bench.machine import describe_machine
from lewel.bench.pillow import lightly_views, torchvision_views
from lewel.bench.timing import Bar, interleaved, quartiles, ratio
from lewel.data.sources.files import Files
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Source, Subset
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import TwoViews, finish_views
from lewel.errors import UserError
from lewel.files import user_path, write_marked
from lewel.nn.backbone import MEAN, STD
from lewel.train.allocator import keep_freed_memory

BASE = "torchvision, all"
HEADER = ("two views of an image", "images/s a core", "quartiles", f"x {BASE}")
RECIPES = (ViewRecipe(), ViewRecipe(blur=0.1, solarise=0.2))  # BYOL's two views
BATCH = 32  # images that are augmented together, as in a training step
PACKS = ("{}-packed", "{}-shards", "{}/shards")  # where packed data of a folder is searched


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
    """Time two views of the same images with each implementation -> the result for the JSON file.

    A round of an entry is one pass over the images. `crop` leaves the photometric augmentation to
    the training device; `all` does it on the same core.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()  # as in a run; the baselines gain by it too
    machine = describe_machine(threads)
    source = open_data(folder, image_size=image_size, limit=images).unlabelled
    packed = packed or find_pack(folder)
    with tempfile.TemporaryDirectory() as temp:
        entries = our_readers("lewel, files", source, image_size)
        if packed is not None:
            shards = open_data(packed, image_size=image_size).unlabelled
            same = same_images(source, shards, packed)
            entries |= our_readers("lewel, packed", same, image_size)
        if link_images(source, Path(temp) / "images"):
            entries |= torchvision_views(temp, image_size, RECIPES)
            if find_spec("lightly") is not None:
                entries |= lightly_views(temp, image_size, RECIPES)
        with Bar(console, len(entries) * (rounds + 1), "bench data") as bar:
            times = interleaved(entries, rounds, torch.device("cpu"), bar)
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
                "quartiles": sorted(len(source) / t / threads for t in quartiles(taken)),
                "speedup": ratio(times, base, name),
                "speedup_against": {
                    other: ratio(times, other, name) for other in times if "lewel" not in other
                },
            }
            for name, taken in times.items()
        },
    }


def our_readers(name: str, source: Source, image_size: int) -> dict[str, Callable[[], object]]:
    """Our views of a source: crop only, and with colour augmentation. Each pass is an epoch."""
    dataset = TwoViews(source, RECIPES, image_size, seed=0)
    epochs = count()

    def read(colours: bool) -> None:
        epoch = next(epochs)
        for start in range(0, len(source), BATCH):
            indices = range(start, min(start + BATCH, len(source)))
            batch = dataset.__getitems__([(epoch, index) for index in indices])
            if batch.corrupt:
                _, path, reason = batch.corrupt[0]
                raise UserError(f"{path} cannot be read ({reason}): repair or remove it.")
            if colours:
                finish_views(batch, torch.device("cpu"), MEAN, STD)

    return {f"{name}, crop": lambda: read(False), f"{name}, all": lambda: read(True)}


def same_images(source: Source, shards: Source, packed: str) -> Source:
    """The images of a source from its packed data, in the same order."""
    place = {shards.describe(index): index for index in range(len(shards))}
    names = [source.describe(index) for index in range(len(source))]
    if absent := [name for name in names if name not in place]:
        raise UserError(
            f"{packed} lacks {len(absent):,} of the {len(names):,} images, for example "
            f"{absent[0]}: expected the packed data of the same folder."
        )
    return Subset(shards, [place[name] for name in names])


def find_pack(folder: str) -> str | None:
    """The packed shards of a folder, if they are beside it or in it."""
    plain = str(user_path(folder)).rstrip("/")
    return next((path for path in (p.format(plain) for p in PACKS) if os.path.isdir(path)), None)


def file_paths(source: Source) -> list[str] | None:
    """The files of a source; None if it does not read files."""
    indices = range(len(source))
    while isinstance(source, Subset):
        indices = [int(source.indices[index]) for index in indices]  # type: ignore[assignment]
        source = source.source
    if not isinstance(source, Files):
        return None
    return [os.path.join(source.root, source.describe(index)) for index in indices]


def link_images(source: Source, folder: Path) -> bool:
    """Link the files for torchvision's ImageFolder; False if there are no files."""
    paths = file_paths(source)
    if paths is None:
        return False
    if unknown := [p for p in paths if not p.lower().endswith(IMG_EXTENSIONS)]:
        raise UserError(f"torchvision's ImageFolder does not read {unknown[0]}: remove such files.")
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
    """A bar chart of images per second."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.5 * len(result["readers"]) + 1.5), layout="constrained")
    axes = figure.subplots()
    names = list(result["readers"])
    values = [result["readers"][name]["images_per_second"] for name in names]
    axes.barh(names, values, color=["tab:blue" if "lewel" in n else "tab:grey" for n in names])
    axes.invert_yaxis()
    axes.set_xlabel("images a second on one core, two views each")
    axes.set_title(result["title"])
    write_marked(path, "bench", lambda temp: figure.savefig(temp, format="png", dpi=120))
