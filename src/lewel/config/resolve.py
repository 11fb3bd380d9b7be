"""From a recipe and settings on top of it, or a run's config.yaml, to checked settings."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lewel.config.pretrain import PretrainConfig
from lewel.config.settings import explain, merge, read_yaml
from lewel.errors import UserError


def resolve(recipe: dict[str, Any], overrides: dict[str, Any]) -> PretrainConfig:
    """A recipe with the user's settings on top of it, as one checked configuration."""
    optim = recipe.get("optim")
    if "batch_size" in recipe and isinstance(optim, dict) and "lr" in optim:
        # The recipe's learning rate is for the recipe's batch.
        recipe = merge({"optim": {"lr_batch_size": recipe["batch_size"]}}, recipe)
    merged = merge(recipe, overrides)
    try:
        config = PretrainConfig.model_validate(merged)
    except ValidationError as error:
        raise UserError(explain(error, PretrainConfig)) from None
    # Only now: flags alone are not compared with defaults that a recipe may replace.
    if config.batch_size % config.accumulate:
        raise UserError(
            f"batch_size {config.batch_size} is not a multiple of accumulate {config.accumulate}: "
            "change --batch-size or --accumulate."
        )
    if config.batch_size // config.accumulate < 2:
        raise UserError(
            "Batch norm needs at least 2 images in a micro-batch: raise --batch-size or lower "
            "--accumulate."
        )
    config = config.model_copy(update={"channels_last": memory_layout(config)})
    if config.head.aligned_dim is None:  # d = c by default (section 3.3)
        head = config.head.model_copy(update={"aligned_dim": config.head.dim})
        config = config.model_copy(update={"head": head})
    return config


def memory_layout(config: PretrainConfig) -> bool:
    """Whether memory is channels_last: from 128 px on, where nothing is chosen.

    oneDNN's strided 1x1 convolutions of fewer than 16 channels on maps of 64 px and more write past
    their memory in that layout.
    """
    if config.channels_last is None:
        return config.image_size >= 128 and not unsafe_layout(config)
    if config.channels_last and unsafe_layout(config):
        raise UserError(
            f"width {config.width} with maps of {first_map(config)} px cannot be trained in "
            "channels_last on a CPU: use --no-channels-last, or --width 16 or more."
        )
    return config.channels_last


def unsafe_layout(config: PretrainConfig) -> bool:
    """Whether channels_last is not safe for a network and an image size."""
    ours = not config.backbone.startswith("timm/")
    return ours and config.width < 16 and first_map(config) >= 64


def first_map(config: PretrainConfig) -> int:
    """The side of a ResNet's first stage in pixels."""
    return config.image_size // {"small": 1, "medium": 2, "imagenet": 4}[config.stem]


def read_config(path: Path) -> PretrainConfig:
    """The settings of a run from its config.yaml."""
    return resolve(read_yaml(path), {})
