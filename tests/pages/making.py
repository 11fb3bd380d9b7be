"""Synthetic galleries and runs for tests of the page."""

from typing import Any

import numpy as np

from lewel.pages.gallery import Gallery, GalleryImage, GalleryView
from lewel.pages.neighbours import Neighbours, Query, Thumb
from lewel.pages.run_data import Picture, Result, RunData
from lewel.train.summary import Summary

NASTY = "<img src=x onerror=alert(1)>.jpg"


def random_gallery(
    images: int = 3, views: int = 3, maps: int = 5, side: int = 48, grid: int = 7
) -> Gallery:
    """Images and maps of noise; the first image has HTML in its name."""
    draw = np.random.default_rng(0)

    def view(caption: str) -> GalleryView:
        raw = draw.random((maps, grid * grid)) ** 3
        raw = (raw / raw.sum(1, keepdims=True)).reshape(maps, grid, grid)
        pixels = draw.integers(0, 256, (side, side, 3), dtype=np.uint8)
        return GalleryView(caption, pixels, raw.astype(np.float32))

    names = [NASTY, *(f"folder/image {index}.jpg" for index in range(1, images))]
    captions = ("input", "view 1", "view 2")[:views]
    return Gallery(
        rule="The maps that differ most from place to place.",
        chosen=tuple(range(3, 3 + 10 * maps, 10)),
        note=None,
        images=tuple(GalleryImage(name, tuple(map(view, captions))) for name in names),
    )


def random_neighbours(queries: int = 3) -> Neighbours:
    """Neighbours of noise; a class has HTML in its name."""
    draw = np.random.default_rng(0)

    def thumb(label: str) -> Thumb:
        return Thumb(NASTY, label, draw.integers(0, 256, (40, 40, 3), dtype=np.uint8))

    row = tuple(thumb(label) for label in ("tent", "<b>gear", "a class with a long name", "x", "y"))
    found = tuple(Query(thumb("tent"), row[::-1], row) for _ in range(queries))
    return Neighbours(found, bank=500, held_out=True)


def metric_lines(steps: int, per_epoch: int = 100, seed: int = 0) -> list[dict[str, Any]]:
    """Lines as a run writes them."""
    noise = np.random.default_rng(seed).normal(0, 0.1, steps + 1)
    lines: list[dict[str, Any]] = [{"step": 0, "epoch": 0.0, "knn": 0.1}]
    for step in range(1, steps + 1):
        line = {"step": step, "epoch": round(step / per_epoch, 4), "lr": 0.1}
        line |= {"loss": float(np.exp(-step / steps) + noise[step]), "embedding_std": 0.8}
        if step % 10 == 0:
            line |= {"images_per_s": 200.0, "data_wait": 0.05}
        lines.append(line)
    lines[-1]["knn"] = 0.6
    return lines


def made_run(name: str = "made", **changes: Any) -> RunData:
    """A run with all fields set."""
    cells = {"run": name, "method": "lewel_b", "task": "knn (k = 20)", "data": "scenes"}
    content: dict[str, Any] = {
        "path": f"runs/{name}",
        "headline": "LEWEL_B trained resnet10 on scenes",
        "progress": "finished",
        "command": f"lewel pretrain --recipe runs/{name}/config.yaml --out runs/{name}-again",
        "config_text": "data: scenes\n",
        "highlights": {"k-NN accuracy": "10.0% → 60.0%"},
        "facts": {"Method": "LEWEL_B"},
        "settings": {"seed": "0", "optim.lr": "0.1"},
        "metrics": Summary.of(metric_lines(300)),
        "results": (Result({**cells, "result": "top-1 53.6%"}, {"tent": 0.5, "<b>gear": 0.25}),),
        "environment": {"torch": "2.6"},
        "corrupt_images": ((NASTY, "not an image"),),
        "gallery": random_gallery(),
        "neighbours": random_neighbours(),
        **changes,
    }
    return RunData(name=name, **content)


def picture(name: str, side: int = 40) -> Picture:
    """A PNG of noise."""
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return Picture(name, buffer.getvalue())
