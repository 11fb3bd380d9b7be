"""What judging a backbone takes: one typed model for flags, help texts and checks."""

from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator, Field, field_validator

from lewel.config import Part


class JudgeConfig(Part):
    """What every way of judging takes."""

    data: str = Field(description="What to judge on: a data set with labels.")
    limit: int | None = Field(None, ge=2, description="Learn from so many images only.")
    classes: str | None = Field(None, description="A file of class names: use only these.")
    image_size: int | None = Field(None, ge=8, description="By default the backbone's own.")
    backbone: str | None = Field(None, description="Which network a foreign file holds.")
    partial: bool = Field(False, description="Take weights that fit only a part of the network.")
    untrained: bool = Field(False, description="Judge the same network with fresh weights.")
    again: bool = Field(False, description="Compute it, even where the answer is known.")
    batch_size: int = Field(256, ge=1, description="Images at a time on a device.")
    seed: int = Field(0, ge=0, description="Decides every random draw.")
    precision: Literal["32", "bf16-mixed", "16-mixed"] = Field("32", description="Arithmetic.")
    workers: int | None = Field(None, ge=0, description="Processes that read images.")
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="Device type.")
    devices: int | None = Field(None, ge=1, description="Devices of each node.")
    nodes: int | None = Field(None, ge=1, description="Machines.")


class KnnConfig(JudgeConfig):
    """k-nearest neighbours."""

    neighbours: Annotated[list[int], Parameter(negative=(), consume_multiple=True)] = Field(
        [1, 5, 10, 20, 50, 100, 200], min_length=1, description="The numbers of neighbours, k."
    )
    temperature: float = Field(0.1, gt=0, description="Of the weights of the neighbours' votes.")


class LearnConfig(JudgeConfig):
    """What learning from labels takes; the defaults are the paper's for LEWEL_B."""

    batch_size: int = Field(256, ge=2, description="Total batch over all devices.")
    epochs: int = Field(50, ge=1, description="Passes over the labelled images.")
    optimiser: Literal["sgd", "lars"] = Field("sgd", description="Both with momentum 0.9.")
    lr: float = Field(0.4, gt=0, description="Peak rate of the classifier, at lr-batch-size.")
    lr_batch_size: int = Field(256, ge=1, description="The batch that rates are for.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay.")
    schedule: Literal["constant", "cosine", "steps"] = Field(
        "steps", description="steps falls to a tenth at 3/5 and 4/5 of the epochs."
    )
    crop_scale: tuple[float, float] = Field(
        (0.08, 1.0), description="Share of the image's area in a training crop."
    )


class LinearConfig(LearnConfig):
    """A linear classifier on the frozen backbone."""

    fast: bool = Field(
        False, description="Features once, then many rates and decays together; no crops."
    )


class FinetuneConfig(LearnConfig):
    """Backbone and classifier learn from a part of the labels."""

    labels: str = Field("10%", description="A share such as 1%, or a file of image names.")
    lr: float = Field(0.1, gt=0, description="Peak rate of the classifier, at lr-batch-size.")
    backbone_lr: float = Field(0.01, gt=0, description="Peak rate of the backbone.")
    scratch: bool = Field(False, description="Begin with fresh weights: the supervised baseline.")


class WhereConfig(Part):
    """Where a run looks, in numbers."""

    data: str = Field(
        description="What to look at: `scenes` or Pascal VOC, which have masks, or other data."
    )
    limit: int = Field(500, ge=2, description="Look at so many images, drawn by the seed.")
    image_size: int | None = Field(
        None, ge=16, description="By default the run's own; larger images have finer maps."
    )
    again: bool = Field(False, description="Compute it, even where the answer is known.")
    seed: int = Field(0, ge=0, description="Decides images, views and random maps.")
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="Device type.")


def _as_text(value: Any) -> Any:
    """A recipe may give one number where a flag gives several with commas."""
    return f"{value:g}" if isinstance(value, int | float) else value


Rates = Annotated[str, BeforeValidator(_as_text)]


class DenseConfig(JudgeConfig):
    """Dense transfer: several rates may be tried."""

    lr: Rates

    @field_validator("lr")
    @classmethod
    def _rates_are_numbers(cls, value: str) -> str:
        try:
            rates = [float(part) for part in value.split(",")]
        except ValueError:
            rates = []
        if not rates or not all(0 < rate < float("inf") for rate in rates):
            raise ValueError(f"{value!r} is no rate: expected a number such as 0.01, or several")
        if len(set(rates)) < len(rates):
            raise ValueError(f"{value!r} names a rate twice")
        return ",".join(f"{rate:g}" for rate in rates)

    @property
    def rates(self) -> list[float]:
        """The rates to try."""
        return [float(part) for part in self.lr.split(",")]


class SegmentConfig(DenseConfig):
    """A dilated FCN on the backbone; the defaults are the paper's."""

    data: str = Field(
        description="A Pascal VOC folder, a folder with images/ and masks/, or scenes."
    )
    split: str | None = Field(
        None, description="VOC's list to learn from; by default train_aug where it is, else train."
    )
    batch_size: int = Field(16, ge=2, description="Total batch over all devices.")
    iterations: int = Field(20_000, ge=1, description="Steps of learning.")
    crop: int = Field(512, ge=16, description="Side of the training crops in pixels.")
    short_side: int | None = Field(
        None, ge=16, description="Bring the shorter side to this, times 0.5-2 when learning."
    )
    lr: Rates = Field("0.01", description="First rate, at lr-batch-size; or several, 0.01,0.02.")
    lr_batch_size: int = Field(16, ge=1, description="The batch that rates are for.")
    min_lr: float = Field(1e-4, ge=0, description="Last rate, at lr-batch-size.")
    power: float = Field(0.9, gt=0, description="Of the fall of the rate.")
    weight_decay: float = Field(5e-4, ge=0, description="Weight decay of all weights.")
    channels: int = Field(512, ge=1, description="Width of the head.")
    auxiliary_channels: int = Field(256, ge=1, description="Width of the head that helps to learn.")
    sync_batch_norm: bool = Field(False, description="Batch norm over all devices: GPUs only.")
    scratch: bool = Field(False, description="Begin with fresh weights: the supervised baseline.")


Numbers = Parameter(negative=(), consume_multiple=True)


class DetectConfig(DenseConfig):
    """Faster R-CNN and Mask R-CNN; the defaults are the paper's for Pascal VOC."""

    data: str = Field(description="A Pascal VOC folder, a COCO folder, or scenes.")
    arch: Literal["c4", "fpn"] = Field("c4", description="One map of the backbone, or a pyramid.")
    masks: bool = Field(False, description="Mask R-CNN: learn masks too.")
    train_split: str | None = Field(None, description="e.g. trainval, 2007/trainval, train2017.")
    val_split: str | None = Field(None, description="What to judge on: e.g. test, val2017.")
    val_limit: int | None = Field(None, ge=1, description="Judge on so many images only.")
    batch_size: int = Field(16, ge=1, description="Total batch over all devices.")
    iterations: int = Field(24_000, ge=1, description="Steps of the training.")
    lr: Rates = Field("0.02", description="Peak rate at lr-batch-size; several, e.g. 0.01,0.02.")
    lr_batch_size: int = Field(16, ge=1, description="The batch that rates are for.")
    warmup: int = Field(100, ge=0, description="Steps over which the rate rises.")
    decays: Annotated[tuple[float, ...], Numbers] = Field(
        (0.75, 0.9166667), description="Shares of the training where the rate falls to a tenth."
    )
    weight_decay: float = Field(1e-4, ge=0, description="Of all weights but norm layers'.")
    short_sides: Annotated[tuple[int, ...], Numbers] = Field(
        tuple(range(480, 801, 32)),
        min_length=1,
        description="Shorter sides in training, in pixels.",
    )
    test_side: int = Field(800, ge=16, description="Shorter side when judged; scenes' size.")
    long_side: int = Field(1333, ge=16, description="No image is longer.")
    rois: int = Field(512, ge=1, description="Regions an image to learn from.")
    anchors: int = Field(256, ge=1, description="Anchors an image to learn from.")
    proposals: Annotated[tuple[int, int, int, int] | None, Numbers] = Field(
        None, description="Before and after NMS in training, then in tests; by default the arch's."
    )
    width: int = Field(256, ge=1, description="Channels of the pyramid and of the mask head.")
    hidden: int = Field(1024, ge=1, description="Units of the pyramid's box head.")
    precise_bn: int = Field(
        200, ge=0, description="Batches that set batch norm's statistics before judging."
    )
