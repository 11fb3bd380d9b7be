"""`lewel where`: metrics of a run's alignment maps and of baselines."""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from lewel.config.evaluate import WhereConfig
from lewel.data.dense.masks import Masked, MaskedSubset, validation_masks
from lewel.data.dense.voc import IGNORED
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.open import open_data
from lewel.data.sources.source import (
    Source,
    Subset,
    annotation_files,
    digest,
    digest_of_files,
    digest_of_times,
    digest_with_labels,
    image_files,
)
from lewel.data.views.transform import whole_view
from lewel.errors import RunError, UserError
from lewel.evaluate.map_selection import agreement, image_side
from lewel.evaluate.maps import random_maps
from lewel.evaluate.results import Results, fingerprint, unchanged_since
from lewel.evaluate.statistics import warnings_of
from lewel.evaluate.views import MapViews, make_views
from lewel.evaluate.where import (
    cut_iou,
    matching,
    mean_correlation,
    normalised_entropy,
    overlap,
    pointing,
    summary,
)
from lewel.files import user_path
from lewel.ops.randomness import generator, seed_of
from lewel.progress import Bar, show
from lewel.tasks.map_model import BATCH, MapModel, open_map_model
from lewel.tasks.outcome import Located
from lewel.train.devices import open_fabric, placement
from lewel.train.run_folder import RunFolder

BASELINES = ("run", "untrained", "random", "uniform")
Values = dict[str, list[Tensor]]  # by metric: (B,) of each batch
Maps = dict[str, list[Tensor]]  # by baseline: (B, K, h, w) of the whole image and of its two views


def where(run: Path, config: WhereConfig, console: Console) -> Located:
    """The metrics of a run's maps on data, cached or computed now."""
    device = open_fabric(placement(1, 1), config.accelerator, "32", False).device
    size = config.image_size
    model = open_map_model(run, image_size=size, device=device)
    # The size at which `open_data` renders scenes.
    masked = validation_masks(config.data, model.config.image_size * 3 // 2)
    source = masked or without_masks(config.data, model.config.image_size, console)
    if masked is not None:
        show(console, note_on(masked))
    indices = chosen_images(source, config.limit, config.seed)
    folder = RunFolder(user_path(run))
    settings = {
        **config.model_dump(mode="json", exclude={"again", "accelerator"}),
        "image_size": model.config.image_size,
        "weights": f"{fingerprint(folder.backbone)} {fingerprint(folder.heads)}",
        "images": digest(Subset(source, indices))[:16],
    }
    files = [] if masked is None else annotation_files(MaskedSubset(masked, indices))
    images = list(image_files(Subset(source, indices)))
    if images:
        settings["image_files"] = str(digest_of_times(images))[:16]
    elif masked is not None and masked.name != "scenes":  # a pack, or COCO's JSON
        settings["annotations"] = digest_with_labels(MaskedSubset(masked, indices))[:16]
    if files:
        settings["mask_files"] = digest_of_files(files)[:16]
    results = Results(folder.path)
    still_right = partial(unchanged_since, [*images, *files])
    cached = None if config.again else results.find("where", settings, still_right)
    if cached is not None:
        show(console, f"cached in {results.path('where')}; --recompute evaluates again")
        return Located(results.path("where"), cached)
    show(console, *warnings_of(len(indices)))
    begun = time.monotonic()
    torch.manual_seed(config.seed)  # for runs trained with random maps
    initial = open_map_model(run, image_size=size, untrained=True, device=device)
    with Bar(f"maps of {len(indices):,} images", len(indices), console) as bar:
        found = measure(model, initial, source, masked, indices, config.seed, bar.advance)
    took = {"seconds": round(time.monotonic() - begun, 1), "written": time.strftime("%F %T%z")}
    about = {"task": "where", "backbone": model.config.backbone, "method": model.config.method}
    result = {**about, "data": source.name, **found, "note": model.note, **took}
    return Located(results.keep("where", settings, result, still_right), result)


def without_masks(name: str, image_size: int, console: Console) -> Source:
    """The validation set of other data, or all images."""
    data = open_data(name, image_size=image_size)
    show(console, *data.notes)
    return data.val or data.unlabelled


def note_on(masked: Masked) -> str:
    """What the masks are of."""
    background = (masked.classes or ("0",))[0]
    return (
        f"{masked.name} has masks: objects of {len(masked):,} images are all classes but "
        f"{background!r}, the first."
    )


def chosen_images(source: Source, limit: int, seed: int) -> np.ndarray:
    """At most `limit` images of a source, drawn by a seed, in ascending order."""
    if len(source) < 2:
        raise UserError(f"{source.name} has {len(source)} image: expected two or more.")
    return np.sort(generator(seed, len(source)).permutation(len(source))[:limit])


def measure(
    model: MapModel,
    initial: MapModel,
    source: Source,
    masked: Masked | None,
    indices: np.ndarray,
    seed: int,
    advance: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """All metrics of the run and its baselines, as means over images with intervals."""
    dataset = model.views(source, seed)
    values: dict[str, Values] = {baseline: {} for baseline in BASELINES}
    ideal: list[Tensor] = []
    shape: tuple[int, int] = (0, 0)
    for part in np.array_split(indices, -(-len(indices) // BATCH)):  # no part has a single image
        views = make_views(dataset, part)
        maps, features = all_maps(model, initial, views, seed_of(seed, int(part[0])))
        shape = (maps["run"][0].shape[1], maps["run"][0].shape[-1])
        target = None if masked is None else cells(masked, part, dataset.size, shape[1])
        for baseline, three in maps.items():
            numbers_found = numbers_of(three, views, target)
            numbers_found["matching"] = matching_of(baseline, features, views)
            for name, numbers in numbers_found.items():
                values[baseline].setdefault(name, []).append(numbers)
        if target is not None:
            perfect = target[0] / target[1].clamp_min(1e-12)
            ideal.append(_with_object(cut_iou(perfect[:, None], *target)[:, 0], target[0]))
        advance(len(part))
    joined = {
        baseline: {name: torch.cat(parts).numpy() for name, parts in found.items()}
        for baseline, found in values.items()
    }
    first, before = joined["run"], joined["untrained"]
    return {
        "images": len(indices),
        "maps": shape[0],
        "locations": shape[1] ** 2,
        "cells": image_side(shape[1]) ** 2,
        "masks": masked is not None,
        "ideal_iou": summary(torch.cat(ideal).numpy()) if ideal else None,
        "baselines": {
            baseline: {name: summary(numbers) for name, numbers in found.items()}
            for baseline, found in joined.items()
        },
        # Paired by image: effects common to both, such as the objects' sizes, cancel.
        "gain": {name: summary(first[name] - before[name]) for name in first},
    }


def all_maps(
    model: MapModel, initial: MapModel, views: MapViews, key: int
) -> tuple[Maps, dict[str, list[Tensor]]]:
    """Maps of the run and of each baseline, equally many, for whole images and both views.

    Also the features (B, N, C) of both views of the two networks.
    """
    pictures = (views.whole, *views.views)
    maps: Maps = {}
    features: dict[str, list[Tensor]] = {}
    for baseline, network in (("run", model), ("untrained", initial)):
        both = [network.maps_and_features(images) for images in pictures]
        maps[baseline] = [one for one, _ in both]
        features[baseline] = [tokens for _, tokens in both[1:]]
    batch, many, side, _ = maps["run"][0].shape
    maps["random"] = [random_maps(batch, many, side, seed_of(key, at)) for at in range(3)]
    maps["uniform"] = [torch.full((batch, many, side, side), 1 / side**2)] * 3
    return maps, features


def matching_of(baseline: str, features: dict[str, list[Tensor]], views: MapViews) -> Tensor:
    """The matching of one baseline (B,); that of a random choice for random maps."""
    side = math.isqrt(features["run"][0].shape[1])
    shares = [boxes / views.sizes.repeat(1, 2) for boxes in views.boxes]
    found = matching(features.get(baseline), shares, views.flips, side)
    return torch.full_like(found, torch.nan) if baseline == "uniform" else found


def cells(masked: Masked, indices: np.ndarray, size: int, side: int) -> tuple[Tensor, Tensor]:
    """The fractions of each cell of whole images that are object and not ignored: (B, N) each."""
    planes = []
    for index in indices.tolist():
        try:
            _, mask = masked.pair(index)
        except UnreadableImage as error:
            raise RunError(f"{masked.describe(index)}: {error}.") from None
        known = mask != IGNORED
        # Cropped and resized as the image is.
        plane = whole_view(torch.stack([(mask > 0) & known, known]).float(), size)
        planes.append(F.adaptive_avg_pool2d(plane, side).flatten(1))
    inside, known = torch.stack(planes, 1).double()
    return torch.where(inside < 1e-9, 0.0, inside), torch.where(known < 1e-9, 0.0, known)


def numbers_of(
    three: list[Tensor], views: MapViews, target: tuple[Tensor, Tensor] | None
) -> dict[str, Tensor]:
    """Each metric of one baseline's maps (B, K, h, w), for each image (B,); NaN if undefined."""
    two, whole = three[1:], three[0].flatten(2)
    geometry = (views.boxes, views.flips, views.sizes)
    found = {
        "consistency": agreement(two, *geometry).nanmean(1),
        "shuffled": agreement(two, *geometry, shift=1).nanmean(1),
    }
    if target is not None:
        iou = cut_iou(whole, *target)
        found |= {
            "pointing": _with_object(pointing(whole, *target).mean(1), target[0]),
            "iou": _with_object(iou.mean(1), target[0]),
            "best_iou": _with_object(iou.amax(1), target[0]),
        }
    found |= {
        "entropy": normalised_entropy(whole).mean(1),
        "overlap": overlap(whole),
        "correlation": mean_correlation(whole),
    }
    return found


def _with_object(numbers: Tensor, inside: Tensor) -> Tensor:
    """Metrics (B,), NaN for images whose whole view shows no object."""
    return numbers.masked_fill(inside.sum(1) <= 0, torch.nan)
