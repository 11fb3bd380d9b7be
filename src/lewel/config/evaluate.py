"""Settings of evaluations: one typed model each for flags, help texts and checks."""

from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator, Field, field_validator, model_validator

from lewel.config.settings import (
    ARITHMETIC,
    CACHE,
    CACHE_SIZE,
    STORAGE_TIMEOUT,
    CacheSize,
    Count,
    CropScale,
    Inside,
    Precision,
    Seed,
    Settings,
    Side,
    StorageTimeout,
)
from lewel.data.pack.storage import MINUTES

Recompute = Annotated[bool, Parameter(alias="--recompute")]
SyncBN = Annotated[bool, Parameter(alias="--sync-bn")]

# What changes how a result is computed, and not what it is.
FREE = {
    "again",
    "workers",
    "accelerator",
    "devices",
    "nodes",
    "rank_timeout",
    "save_predictions",
    "storage_timeout",
    "cache",
    "cache_size",
}


class EvaluateConfig(Settings):
    """What every evaluation takes."""

    data: str = Field(description="What to evaluate on: a data set with labels.")
    limit: int | None = Field(None, ge=2, description="Train on so many images only.")
    classes: str | None = Field(None, description="A file of class names: use only these.")
    image_size: int | None = Field(None, ge=8, description="By default the backbone's own.")
    backbone: str | None = Field(
        None,
        description="Architecture of a third-party checkpoint that is no ResNet.",
    )
    partial: bool = Field(False, description="Load weights that fit only a part of the network.")
    untrained: Annotated[bool, Parameter(alias="--random-init")] = Field(
        False, description="Evaluate the same network, randomly initialised."
    )
    again: Recompute = Field(False, description="Compute it, even where the result is cached.")
    batch_size: int = Field(256, ge=1, description="Images at a time on a device.")
    seed: Seed = Field(0, description="Decides every random draw.")
    precision: Precision = Field("auto", description=ARITHMETIC)
    workers: int | None = Field(None, ge=0, le=1024, description="Processes that read images.")
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="Device type.")
    devices: int | None = Field(None, ge=1, description="Devices of each node.")
    nodes: int | None = Field(None, ge=1, description="Machines.")
    rank_timeout: float = Field(
        10, gt=0, description="Minutes without an answer after which a rank is given up."
    )
    storage_timeout: StorageTimeout = Field(MINUTES, description=STORAGE_TIMEOUT)
    cache: str | None = Field(None, description=CACHE)
    cache_size: CacheSize = Field("200GB", description=CACHE_SIZE)


class KnnConfig(EvaluateConfig):
    """k-nearest neighbours."""

    neighbours: Annotated[list[Count], Parameter(negative=(), consume_multiple=True)] = Field(
        [1, 5, 10, 20, 50, 100, 200], min_length=1, description="The numbers of neighbours, k."
    )
    temperature: float = Field(0.1, gt=0, description="Of the weights of the neighbours' votes.")


class TrainConfig(EvaluateConfig):
    """Training on labels; the defaults are the paper's for LEWEL_B."""

    batch_size: int = Field(256, ge=2, description="Total batch over all devices.")
    epochs: int = Field(50, ge=1, description="Passes over the labelled images.")
    optimiser: Literal["sgd", "lars"] = Field("sgd", description="Both with momentum 0.9.")
    lr: float = Field(0.4, gt=0, description="Peak learning rate, at lr-batch-size.")
    lr_batch_size: int = Field(256, ge=1, description="The batch that learning rates are for.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay.")
    schedule: Literal["constant", "cosine", "steps"] = Field(
        "steps", description="steps falls to a tenth at 3/5 and 4/5 of the epochs."
    )
    crop_scale: CropScale = Field(
        (0.08, 1.0), description="Fraction of the image's area in a training crop."
    )


class LinearConfig(TrainConfig):
    """A linear classifier on the frozen backbone."""

    fast: Annotated[bool, Parameter(alias="--cached-features")] = Field(
        False,
        description="A linear probe on cached features: many learning rates and weight decays at "
        "once, no crops.",
    )


class FinetuneConfig(TrainConfig):
    """Backbone and classifier are trained on a fraction of the labels."""

    labels: str = Field("10%", description="A fraction such as 1%, or a file of image names.")
    lr: float = Field(0.1, gt=0, description="Peak learning rate, at lr-batch-size.")
    backbone_lr: float = Field(0.01, gt=0, description="Peak learning rate of the backbone.")
    scratch: bool = Field(False, description="Begin randomly initialised: the supervised baseline.")


class WhereConfig(Settings):
    """Numbers of a run's alignment maps."""

    data: str = Field(
        description="Data with masks: `scenes`, Pascal VOC, COCO, images/ and masks/; or other."
    )
    limit: int = Field(500, ge=2, description="Use so many images, drawn by the seed.")
    image_size: int | None = Field(
        None, ge=16, description="By default the run's own; larger images have finer maps."
    )
    again: Recompute = Field(False, description="Compute it, even where the result is cached.")
    seed: Seed = Field(0, description="Decides images, views and random maps.")
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="Device type.")


def _as_text(value: Any) -> Any:
    """A recipe may give one number where a flag gives several with commas."""
    return f"{value:g}" if isinstance(value, int | float) else value


Rates = Annotated[str, BeforeValidator(_as_text)]


class DenseConfig(EvaluateConfig):
    """Dense tasks: several learning rates may be tried."""

    lr: Rates
    save_predictions: Annotated[bool, Parameter(negative=())] = Field(
        False, description="Keep all predictions in predictions/: masks as PNG, boxes as COCO JSON."
    )

    @field_validator("lr")
    @classmethod
    def _rates_are_numbers(cls, value: str) -> str:
        try:
            rates = [float(part) for part in value.split(",")]
        except ValueError:
            rates = []
        if not rates or not all(0 < rate < float("inf") for rate in rates):
            raise ValueError(f"{value!r} is no learning rate: expected a number, or several")
        if len(set(rates)) < len(rates):
            raise ValueError(f"{value!r} names a learning rate twice")
        return ",".join(f"{rate:g}" for rate in rates)

    @property
    def rates(self) -> list[float]:
        """The learning rates to try."""
        return [float(part) for part in self.lr.split(",")]


class SegmentConfig(DenseConfig):
    """A dilated FCN on the backbone; the defaults are the paper's."""

    data: str = Field(
        description="A Pascal VOC folder, a folder with images/ and masks/, or scenes."
    )
    split: str | None = Field(
        None, description="VOC's list to train on; by default train_aug where it is, else train."
    )
    batch_size: int = Field(16, ge=2, description="Total batch over all devices.")
    iterations: int = Field(20_000, ge=1, description="Training steps.")
    crop: int = Field(512, ge=16, description="Side of the training crops in pixels.")
    short_side: int | None = Field(
        None, ge=16, description="Resize the shorter side to this, times 0.5-2 in training."
    )
    lr: Rates = Field("0.01", description="First learning rate; or several, 0.01,0.02.")
    lr_batch_size: int = Field(16, ge=1, description="The batch that learning rates are for.")
    min_lr: float = Field(1e-4, ge=0, description="Last learning rate, at lr-batch-size.")
    power: float = Field(0.9, gt=0, description="Exponent of the polynomial decay.")
    weight_decay: float = Field(5e-4, ge=0, description="Weight decay of all weights.")
    channels: int = Field(512, ge=1, description="Width of the head.")
    auxiliary_channels: int = Field(256, ge=1, description="Width of the auxiliary head.")
    sync_batch_norm: SyncBN = Field(False, description="SyncBN: GPUs only.")
    scratch: bool = Field(False, description="Begin randomly initialised: the supervised baseline.")

    @model_validator(mode="after")
    def _decays(self) -> "SegmentConfig":
        if self.min_lr > min(self.rates):
            raise ValueError(
                f"the last learning rate, --min-lr {self.min_lr:g}, is above the first, --lr "
                f"{min(self.rates):g}: lower it"
            )
        return self


Numbers = Parameter(negative=(), consume_multiple=True)


class DetectConfig(DenseConfig):
    """Faster R-CNN and Mask R-CNN; the defaults are the paper's for Pascal VOC."""

    data: str = Field(description="A Pascal VOC folder, a COCO folder, or scenes.")
    arch: Literal["c4", "fpn"] = Field("c4", description="One feature map, or an FPN.")
    masks: bool = Field(False, description="Mask R-CNN: train masks too.")
    train_split: str | None = Field(None, description="e.g. trainval, 2007/trainval, train2017.")
    val_split: str | None = Field(None, description="Validation set: e.g. test, val2017.")
    val_limit: int | None = Field(None, ge=1, description="Evaluate on so many images only.")
    batch_size: int = Field(16, ge=1, description="Total batch over all devices.")
    iterations: int = Field(24_000, ge=1, description="Training steps.")
    lr: Rates = Field("0.02", description="Peak learning rate; or several, 0.01,0.02.")
    lr_batch_size: int = Field(16, ge=1, description="The batch that learning rates are for.")
    warmup: int = Field(100, ge=0, description="Steps of linear warm-up.")
    decays: Annotated[tuple[Inside, ...], Numbers] = Field(
        (0.75, 0.9166667),
        description="Fractions of the training where the learning rate falls to a tenth.",
    )
    weight_decay: float = Field(1e-4, ge=0, description="For all weights but norm layers'.")
    short_sides: Annotated[tuple[Side, ...], Numbers] = Field(
        tuple(range(480, 801, 32)),
        min_length=1,
        description="Shorter sides in training, in pixels.",
    )
    test_side: int = Field(800, ge=16, description="Shorter side in evaluation; scenes' size.")
    long_side: int = Field(1333, ge=16, description="No image is longer.")
    rois: int = Field(512, ge=1, description="RoIs an image to train on.")
    anchors: int = Field(256, ge=1, description="Anchors an image to train on.")
    proposals: Annotated[tuple[Count, Count, Count, Count] | None, Numbers] = Field(
        None, description="Before and after NMS in training, then in tests; by default the arch's."
    )
    width: int = Field(256, ge=1, description="Channels of the FPN and of the mask head.")
    hidden: int = Field(1024, ge=1, description="Units of the FPN's box head.")
    precise_bn: int = Field(
        200,
        ge=0,
        description="PreciseBN: batches for batch norm's statistics before evaluation.",
    )


CONFIGS: dict[str, type[EvaluateConfig]] = {
    "knn": KnnConfig,
    "linear": LinearConfig,
    "finetune": FinetuneConfig,
    "segment": SegmentConfig,
    "detect": DetectConfig,
}
