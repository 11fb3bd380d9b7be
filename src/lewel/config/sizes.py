"""Sizes of crops, and whether the sizes of a run go together."""

import math

from lewel.config.methods import taken
from lewel.config.pretrain import PretrainConfig
from lewel.errors import UserError
from lewel.interop.backbones import size_explained
from lewel.methods.registry import find_method
from lewel.nn.backbone import RESNETS, Backbone


def crop_sizes(config: PretrainConfig) -> list[int]:
    """The side of each crop of an image in pixels, as `build_dataset` makes them."""
    about = find_method(config.method).about
    small = config.views.small_crops if about.small_crops else 0
    return [config.image_size] * about.views + [small_size(config)] * small


def small_size(config: PretrainConfig) -> int:
    """The side of a small crop in pixels: by default SwAV's 96 for 224, as a fraction."""
    return config.views.small_size or round(config.image_size * 96 / 224)


def check_sizes(config: PretrainConfig, backbone: Backbone, ranks: int) -> None:
    """Raise UserError for sizes that do not go together, before anything runs."""
    head, groups = config.head, config.head.groups
    settings = taken(find_method(config.method))
    aligned = "head.aligned_weight" in settings and head.aligned_weight > 0
    if aligned:
        if head.aligned_projector == "shared" and head.aligned_dim != head.dim:
            raise UserError(
                f"With --head.aligned-projector shared, head.aligned_dim (c) {head.aligned_dim} "
                f"must be head.dim (d) {head.dim}: use --head.aligned-dim {head.dim}."
            )
        for what, value, flag in (
            ("head.dim (d)", head.dim, "--head.dim"),
            (f"the channels of {config.backbone}", backbone.channels, "--width"),
        ):
            if value % groups:
                raise UserError(
                    f"{what} is {value}, not a multiple of head.groups (h) {groups}: "
                    f"change {flag} or --head.groups."
                )
    if "contrast.norm_groups" in settings:
        check_groups(config, ranks)
    with size_explained(config.backbone, config.image_size):
        locations = backbone.locations(config.image_size)
    for size in set(crop_sizes(config)) - {config.image_size}:
        if size > config.image_size:
            raise UserError(
                f"--views.small-size {size} is larger than --image-size {config.image_size}: by "
                "default small crops have 3/7 of it."
            )
        with size_explained(config.backbone, size, "--views.small-size"):
            backbone.locations(size)
    if math.isqrt(locations) ** 2 != locations:
        raise UserError(
            f"{config.backbone} gives {locations} tokens, which form no square grid: choose "
            "another --backbone."
        )
    if locations < 4 and "head.maps" in settings:
        raise UserError(
            f"{config.backbone} sees images of {config.image_size} px at {locations} locations, "
            "too few to choose where to learn: raise --image-size"
            + (", or use --stem medium or small." if config.backbone in RESNETS else ".")
        )


def check_batch(config: PretrainConfig, source: str, images: int, ranks: int) -> None:
    """Raise UserError for a batch that devices cannot share or the data do not have."""
    parts = ranks * config.accumulate
    if config.batch_size % parts or config.batch_size < 2 * parts:
        raise UserError(
            f"The batch size {config.batch_size} cannot be shared by {ranks} devices x "
            f"{config.accumulate} micro-batches in parts of 2 or more: change --batch-size."
        )
    if images < 2:
        raise UserError(
            f"{source} has {images} image: pre-training needs 2 or more, and many more to learn "
            "from."
        )
    if config.batch_size > images:
        raise UserError(
            f"The batch size {config.batch_size} is larger than the data ({images} images): "
            f"use --batch-size {max(2, images // 2)} or less."
        )


def own_groups(config: PretrainConfig, started: int, ranks: int) -> PretrainConfig:
    """With the ShuffleBN groups of the processes that are started, of all `ranks`."""
    mine = max(1, config.contrast.norm_groups * started // ranks)
    return config.model_copy(
        update={"contrast": config.contrast.model_copy(update={"norm_groups": mine})}
    )


def check_groups(config: PretrainConfig, ranks: int) -> None:
    """ShuffleBN's groups must share each device's part of the batch evenly."""
    groups, share = config.contrast.norm_groups, config.batch_size // config.accumulate // ranks
    mine = max(1, groups // ranks)
    if (groups > ranks and groups % ranks) or share % mine or share < 2 * mine:
        devices = f" on each of {ranks} devices" if ranks > 1 else ""
        raise UserError(
            f"A micro-batch of {share}{devices} cannot be normalised in {groups} groups of 2 or "
            "more in all: change --batch-size or --contrast.shuffle-bn-groups."
        )
    if config.sync_batch_norm and ranks > 1 and groups > 1:
        raise UserError(
            "--sync-batch-norm normalises all devices together, --contrast.shuffle-bn-groups "
            f"{groups} apart: use --contrast.shuffle-bn-groups 1, or leave the first out."
        )
