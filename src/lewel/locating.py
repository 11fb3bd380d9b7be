"""Where a run looks, in numbers: from its folder and some data to a result beside its rivals."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from lewel.data.images import UnreadableImage
from lewel.data.masks import Masked, judged_masks
from lewel.data.sources import Source, Subset, digest, open_data
from lewel.data.voc import IGNORED
from lewel.errors import RunError, UserError
from lewel.eval.choice import agreement, image_side
from lewel.eval.features import whole_view
from lewel.eval.looks import Look, look_at
from lewel.eval.maps import random_maps
from lewel.eval.results import Results, fingerprint
from lewel.eval.where import cut_iou, evenness, likeness, overlap, pointing, summary
from lewel.judge_config import WhereConfig
from lewel.looking import BATCH, Looker, open_looker
from lewel.ops.randomness import generator, seed_of
from lewel.train.devices import open_fabric, placement
from lewel.train.folder import RunFolder

RIVALS = ("run", "untrained", "random", "uniform")
Values = dict[str, list[Tensor]]  # by the name of a number: (B,) of each batch
Maps = dict[str, list[Tensor]]  # by rival: (B, K, h, w) of the whole image and of its two views


def ask_where(run: Path, config: WhereConfig, console: Console) -> tuple[dict[str, Any], Path]:
    """The numbers of a run on data, from its results or computed now; their file."""
    device = open_fabric(placement(1, 1), config.accelerator, "32", False).device
    size = config.image_size
    looker = open_looker(run, image_size=size, device=device)
    # Scenes as `open_data` draws them.
    masked = judged_masks(config.data, looker.config.image_size * 3 // 2)
    source = masked or without_masks(config.data, looker.config.image_size)
    indices = chosen_images(source, config.limit, config.seed)
    folder = RunFolder(run.expanduser())
    question = {
        **config.model_dump(mode="json", exclude={"again", "accelerator"}),
        "image_size": looker.config.image_size,
        "weights": f"{fingerprint(folder.backbone)} {fingerprint(folder.heads)}",
        "images": digest(Subset(source, indices))[:16],
    }
    results = Results(folder.path)
    known = None if config.again else results.answer("where", question)
    if known is not None:
        word = f"Known from {results.path('where')}; --again computes it anew."
        console.print(word, highlight=False, markup=False, soft_wrap=True)
        return known, results.path("where")
    begun = time.monotonic()
    torch.manual_seed(config.seed)  # a run that was trained with random maps draws them by it
    fresh = open_looker(run, image_size=size, untrained=True, device=device)
    columns = (TextColumn("{task.description}"), BarColumn(20), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(f"maps of {len(indices):,} images", total=len(indices))

        def advance(images: int) -> None:
            progress.advance(bar, images)

        found = measure(looker, fresh, source, masked, indices, config.seed, advance)
    took = {"seconds": round(time.monotonic() - begun, 1), "written": time.strftime("%F %T%z")}
    about = {"task": "where", "backbone": looker.config.backbone, "method": looker.config.method}
    answer = {**about, "data": source.name, **found, "note": looker.note, **took}
    return answer, results.keep("where", question, answer)


def without_masks(name: str, image_size: int) -> Source:
    """The images for judging of other data, or all there are."""
    data = open_data(name, image_size=image_size)
    return data.val or data.unlabelled


def chosen_images(source: Source, limit: int, seed: int) -> np.ndarray:
    """So many of a source's images, drawn by a seed, in their order."""
    if len(source) < 2:
        raise UserError(f"{source.name} has {len(source)} image: expected two or more to compare.")
    return np.sort(generator(seed, len(source)).permutation(len(source))[:limit])


def measure(
    looker: Looker,
    fresh: Looker,
    source: Source,
    masked: Masked | None,
    indices: np.ndarray,
    seed: int,
    advance: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """All numbers of the run and its rivals, each a mean over images with its interval."""
    dataset = looker.views(source, seed)
    values: dict[str, Values] = {rival: {} for rival in RIVALS}
    ideal: list[Tensor] = []
    shape: tuple[int, int] = (0, 0)
    for part in np.array_split(indices, -(-len(indices) // BATCH)):  # none of them has one image
        look = look_at(dataset, part)
        maps = all_maps(looker, fresh, look, seed_of(seed, int(part[0])))
        shape = (maps["run"][0].shape[1], maps["run"][0].shape[-1])
        truth = None if masked is None else cells(masked, part, dataset.size, shape[1])
        for rival, three in maps.items():
            for name, numbers in numbers_of(three, look, truth).items():
                values[rival].setdefault(name, []).append(numbers)
        if truth is not None:
            perfect = truth[0] / truth[1].clamp_min(1e-12)
            ideal.append(_seen(cut_iou(perfect[:, None], *truth)[:, 0], truth[0]))
        advance(len(part))
    joined = {
        rival: {name: torch.cat(parts).numpy() for name, parts in found.items()}
        for rival, found in values.items()
    }
    first, before = joined["run"], joined["untrained"]
    return {
        "images": len(indices),
        "maps": shape[0],
        "positions": shape[1] ** 2,
        "cells": image_side(shape[1]) ** 2,
        "masks": masked is not None,
        "ideal_iou": summary(torch.cat(ideal).numpy()) if ideal else None,
        "rivals": {
            rival: {name: summary(numbers) for name, numbers in found.items()}
            for rival, found in joined.items()
        },
        # Image by image: what is common to both, such as the objects' sizes, blurs it no more.
        "learned": {name: summary(first[name] - before[name]) for name in first},
    }


def all_maps(looker: Looker, fresh: Looker, look: Look, key: int) -> Maps:
    """The maps of the run and of each rival, as many, for whole images and both views."""
    pictures = (look.whole, *look.views)
    maps: Maps = {"run": [looker.maps(images) for images in pictures]}
    batch, many, side, _ = maps["run"][0].shape
    maps["untrained"] = [fresh.maps(images) for images in pictures]
    maps["random"] = [random_maps(batch, many, side, seed_of(key, at)) for at in range(3)]
    maps["uniform"] = [torch.full((batch, many, side, side), 1 / side**2)] * 3
    return maps


def cells(masked: Masked, indices: np.ndarray, size: int, side: int) -> tuple[Tensor, Tensor]:
    """How much of each cell of whole images is object, and how much is known: (B, N) each."""
    planes = []
    for index in indices.tolist():
        try:
            _, mask = masked.pair(index)
        except UnreadableImage as error:
            raise RunError(f"{masked.describe(index)}: {error}.") from None
        known = mask != IGNORED
        # Cut and resized as the image is, so that both show the same.
        plane = whole_view(torch.stack([(mask > 0) & known, known]).float(), size)
        planes.append(F.adaptive_avg_pool2d(plane, side).flatten(1))
    inside, known = torch.stack(planes, 1).double()
    return torch.where(inside < 1e-9, 0.0, inside), torch.where(known < 1e-9, 0.0, known)


def numbers_of(
    three: list[Tensor], look: Look, truth: tuple[Tensor, Tensor] | None
) -> dict[str, Tensor]:
    """Each number of one rival's maps (B, K, h, w), for each image (B,); NaN where it has none."""
    views, whole = three[1:], three[0].flatten(2)
    found = {
        "consistency": agreement(views, look.boxes, look.flips, look.sizes).nanmean(1),
        "shuffled": agreement(views, look.boxes, look.flips, look.sizes, shift=1).nanmean(1),
    }
    if truth is not None:
        iou = cut_iou(whole, *truth)
        found |= {
            "pointing": _seen(pointing(whole, *truth).mean(1), truth[0]),
            "iou": _seen(iou.mean(1), truth[0]),
            "best_iou": _seen(iou.amax(1), truth[0]),
        }
    found |= {
        "entropy": evenness(whole).mean(1),
        "overlap": overlap(whole),
        "likeness": likeness(whole),
    }
    return found


def _seen(numbers: Tensor, inside: Tensor) -> Tensor:
    """Numbers (B,) of images that show an object; the whole view may cut all of it off."""
    return numbers.masked_fill(inside.sum(1) <= 0, torch.nan)
