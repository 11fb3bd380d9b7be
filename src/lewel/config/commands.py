"""Settings of the commands that neither train nor evaluate: flags, help texts and checks."""

from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field

from lewel.config.settings import (
    CACHE,
    CACHE_SIZE,
    STORAGE_TIMEOUT,
    CacheSize,
    Seed,
    Settings,
    StorageTimeout,
)
from lewel.data.pack.storage import MINUTES

Format = Literal["torchvision", "timm", "hub", "detectron2", "mmseg", "onnx", "torch-export"]
Accelerator = Literal["auto", "cpu", "cuda", "mps"]
Architecture = Annotated[str | None, Parameter(alias="--network")]
RandomInit = Annotated[bool, Parameter(alias="--random-init", negative=())]
Flag = Annotated[bool, Parameter(negative=())]
OVERWRITE = "Replace existing files that this command did not write."


class EmbedConfig(Settings):
    """Features of images."""

    image_size: int | None = Field(None, ge=8, description="By default the backbone's own.")
    backbone: Architecture = Field(
        None, description="Architecture of a third-party checkpoint that is no ResNet: timm/NAME."
    )
    limit: int | None = Field(
        None, ge=1, description="Use only so many images, of those to train on."
    )
    batch_size: int = Field(256, ge=1, description="Images at a time.")
    workers: int | None = Field(None, ge=0, le=1024, description="Processes that read images.")
    accelerator: Accelerator = Field("auto", description="Device type.")
    storage_timeout: StorageTimeout = Field(MINUTES, description=STORAGE_TIMEOUT)
    cache: str | None = Field(None, description=CACHE)
    cache_size: CacheSize = Field("200GB", description=CACHE_SIZE)
    overwrite: Flag = Field(False, description=OVERWRITE)


class ExportConfig(Settings):
    """A backbone for another project."""

    to: Format = Field(
        description="Project or format; hub: a folder with weights, config and model card; "
        "detectron2 and mmseg get a config beside the weights."
    )
    backbone: str | None = Field(
        None, description="Architecture of a third-party checkpoint that is no ResNet: timm/NAME."
    )
    image_size: int | None = Field(
        None, ge=8, description="Of onnx and torch-export; by default the backbone's own."
    )
    opset: int = Field(18, ge=1, description="The operator set of an ONNX file.")
    partial: Flag = Field(False, description="Load weights that fit only a part of the network.")
    untrained: RandomInit = Field(False, description="Export the randomly initialised network.")
    overwrite: Flag = Field(False, description=OVERWRITE)


class ImportConfig(Settings):
    """A third-party checkpoint."""

    backbone: str | None = Field(
        None, description="Architecture of the checkpoint, where it is no ResNet: timm/NAME."
    )
    stem: Literal["imagenet", "medium", "small"] | None = Field(
        None, description="A 3x3 stem may have stride 2 (medium) or 1 (small, assumed)."
    )
    image_size: int | None = Field(None, ge=8, description="Of its training; 224 by default.")
    partial: Flag = Field(False, description="Load weights that fit only a part of the network.")
    overwrite: Flag = Field(False, description="Replace a backbone and a card that are there.")


class MapsConfig(Settings):
    """Which alignment maps are drawn, and over what."""

    n: int = Field(8, ge=1, description="Number of maps.")
    rule: Literal["peaked", "consistent", "different"] = Field(
        "different",
        description="Which maps: the most peaked, the most consistent over both views, or the "
        "most different.",
    )
    limit: int = Field(12, ge=1, description="At most so many images.")
    image_size: int | None = Field(
        None,
        ge=16,
        description="Side of the images; by default the run's, for convolutional networks at "
        "least 128. Larger: finer maps.",
    )
    overwrite: Flag = Field(False, description=OVERWRITE)
    seed: Seed = Field(0, description="Decides the views.")


class PackConfig(Settings):
    """How images are packed into shards."""

    size: int = Field(
        256, ge=16, le=65_500, description="Pixels of the shorter side; smaller images stay."
    )
    quality: int = Field(92, ge=1, le=100, description="Quality of the JPEGs.")
    keep: Flag = Field(
        False, description="Keep the files as they are; arrays and scenes as PNG, without loss."
    )
    images_only: Flag = Field(
        False, description="Leave out masks and boxes, for which images stay as they are."
    )
    shard_images: int = Field(8192, ge=1, le=10**9, description="Images in a shard.")
    seed: Seed = Field(0, description="Decides the order that the images are stored in.")
    workers: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="Processes that encode images; by default one for each core.",
    )
    storage_timeout: StorageTimeout = Field(
        MINUTES, description="Minutes without an answer of storage after which packing stops."
    )
