"""Settings of a run: one typed model for recipes, flags, help texts and checks."""

from difflib import get_close_matches
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field, field_validator

from lewel.config.settings import (
    ARITHMETIC,
    CACHE,
    CACHE_SIZE,
    STORAGE_TIMEOUT,
    CacheSize,
    CropScale,
    Fraction,
    Precision,
    Range,
    Seed,
    Settings,
    StorageTimeout,
)
from lewel.data.pack.storage import MINUTES
from lewel.methods.registry import method_names


class Head(Settings):
    """Projectors and predictors."""

    dim: int = Field(256, ge=2, description="d, the size of the global embedding.")
    hidden: int = Field(4096, ge=1, description="Hidden units of every projector and predictor.")
    aligned_dim: int | None = Field(
        None, ge=2, description="c, the size of each aligned embedding; by default d."
    )
    groups: int = Field(4, ge=1, description="h of Eq. 2: d/h aligned embeddings are made.")
    aligned_weight: Fraction = Field(
        0.5, description="beta of Eq. 3, the weight of the aligned loss."
    )
    maps: Literal["coupled", "separate", "random", "uniform"] = Field(
        "coupled",
        description="Where maps come from: the projector g, one of their own, random, or pooling.",
    )
    map_temperature: Annotated[float, Field(gt=0)] | Literal["learned"] = Field(
        1.0, description="Of the maps' softmax over locations: 1 in the paper, or learned."
    )
    aligned_projector: Literal["own", "shared"] = Field(
        "own", description="p: a projector of its own, or g once more."
    )
    norm: Literal["batch", "none"] = Field("batch", description="In every projector and predictor.")


class Teacher(Settings):
    """The momentum network."""

    statistics: Literal["ema", "eman"] = Field(
        "eman", description="Average parameters only, or the batch norm statistics too."
    )
    momentum: Fraction = Field(0.98, description="alpha, how much the teacher keeps of itself.")
    schedule: Literal["constant", "cosine"] = Field("cosine", description="cosine rises to 1.")


class Contrast(Settings):
    """InfoNCE and the queue of the MoCo family."""

    negatives: Literal["queue", "batch"] = Field(
        "queue", description="Of the global loss: the queue, or the batch's other images."
    )
    queue: int | None = Field(
        None, ge=1, description="Keys in the queue; by default 65536 or a quarter of the images."
    )
    temperature: float = Field(0.2, gt=0, description="tau of Eq. 4.")
    symmetric: bool = Field(False, description="Both views in turn, at twice the cost.")
    norm_groups: Annotated[int, Parameter(alias="--contrast.shuffle-bn-groups")] = Field(
        8, ge=1, description="ShuffleBN groups: parts of the total batch with their own statistics."
    )


class Optim(Settings):
    """The optimiser."""

    name: Literal["lars", "sgd", "adamw"] = Field("lars", description="The optimiser.")
    lr: float = Field(1.8, gt=0, description="Peak learning rate at a batch of lr-batch-size.")
    lr_batch_size: int = Field(
        512, ge=1, description="The total batch that lr is for; others scale lr linearly."
    )
    momentum: Fraction = Field(0.9, description="Momentum of LARS and SGD.")
    weight_decay: float = Field(1e-6, ge=0, description="Weight decay.")
    exclude_bias_and_norm: bool = Field(
        True, description="No weight decay (nor LARS scaling) for biases and norm layers."
    )
    warmup_epochs: float = Field(10, ge=0, description="Epochs of linear warm-up.")
    warmup_start: Fraction = Field(0, description="Fraction of lr that the warm-up begins with.")
    schedule: Literal["constant", "cosine", "steps"] = Field(
        "cosine", description="cosine falls to end; steps to a tenth at 3/5 and 4/5 of the run."
    )
    end: Fraction = Field(0, description="Fraction of lr that cosine falls to.")


class Views(Settings):
    """How the two views are made; pairs are (first view, second view) or (low, high)."""

    crop_scale: CropScale = Field((0.2, 1.0), description="Fraction of the image's area in a crop.")
    flip: Fraction = Field(0.5, description="Probability of a horizontal flip.")
    jitter: tuple[float, float, float, float] = Field(
        (0.4, 0.4, 0.2, 0.1), description="Brightness, contrast, saturation, hue."
    )
    jitter_probability: Fraction = Field(0.8, description="Probability of colour jitter.")
    grey: Fraction = Field(0.2, description="Probability of greyscale.")
    blur: tuple[Fraction, Fraction] = Field((1.0, 0.1), description="Probability of blur, by view.")
    blur_sigma: Range = Field((0.1, 2.0), description="Range of the blur's sigma.")
    solarise: tuple[Fraction, Fraction] = Field(
        (0.0, 0.2), description="Probability of solarisation, by view."
    )
    small_crops: int = Field(
        6, ge=0, description="Small crops beside the two views, for methods that take them."
    )
    small_size: int | None = Field(
        None, ge=8, description="Side of a small crop; by default 3/7 of the image size."
    )
    small_scale: CropScale = Field(
        (0.05, 0.14), description="Fraction of the image's area in a small crop."
    )

    @field_validator("jitter")
    @classmethod
    def _jitter_is_possible(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not 0 <= value[3] <= 0.5 or min(value) < 0:
            raise ValueError(f"expected four numbers >= 0, hue <= 0.5, not {value}")
        return value


class Knn(Settings):
    """The k-NN probe of a run, where labels exist."""

    every: float = Field(10, ge=0, description="Epochs between two probes; 0 for none.")
    bank: int = Field(10_000, ge=1, description="At most so many labelled training images.")
    queries: int = Field(2_000, ge=1, description="At most so many validation images.")
    neighbours: int = Field(20, ge=1, description="k.")


class PretrainConfig(Settings):
    """Everything that decides a pre-training run; the defaults are the paper's LEWEL_B."""

    data: Annotated[str, Parameter(show=False, parse=False)] = "scenes"
    limit: int | None = Field(None, ge=1, description="Use only so many images.")
    classes: str | None = Field(
        None, description="A file of class names, one a line: use only these classes."
    )
    method: str = Field("lewel_b", description=f"One of {', '.join(method_names())}.")
    options: dict[str, bool | int | float | str | None] = Field(
        {}, description="Settings that only the chosen method has, as --options.NAME VALUE."
    )
    backbone: str = Field(
        "resnet50", description="The network: a torchvision ResNet, resnet10, or timm/NAME."
    )
    stem: Literal["imagenet", "medium", "small"] = Field(
        "imagenet",
        description="A ResNet's first layers: stride 4; medium (64-127 px) 2; small (32-96 px) 1.",
    )
    width: int = Field(64, ge=1, description="Channels of a ResNet's first stage.")
    init: str | None = Field(
        None,
        description="Initial weights: a run folder, .safetensors, .pth or .pt, or published ones "
        "by name (torchvision/resnet50, timm/resnet50.a1_in1k).",
    )
    image_size: int = Field(224, ge=16, description="Side of a view in pixels.")
    batch_size: int = Field(512, ge=2, description="Total batch over devices and accumulation.")
    accumulate: int = Field(1, ge=1, description="Micro-batches to one optimiser step.")
    epochs: int = Field(100, ge=1, description="Passes over the data.")
    sync_batch_norm: Annotated[bool, Parameter(alias="--sync-bn")] = Field(
        False, description="SyncBN, for several GPUs."
    )
    seed: Seed = Field(0, description="Decides every random draw.")
    precision: Precision = Field("auto", description=ARITHMETIC)
    cudnn_benchmark: bool = Field(
        True, description="On CUDA choose the fastest convolutions by timing them once."
    )
    channels_last: bool | None = Field(
        None, description="Memory layout; by default for images of 128 px and more."
    )
    compile: bool = Field(
        False, description="Compile the backbone by torch.compile, where that works."
    )
    head: Annotated[Head, Parameter(group="Head")] = Head()
    teacher: Annotated[Teacher, Parameter(group="Teacher")] = Teacher()
    contrast: Annotated[Contrast, Parameter(group="Contrast")] = Contrast()
    optim: Annotated[Optim, Parameter(group="Optimiser")] = Optim()
    views: Annotated[Views, Parameter(group="Views", negative=())] = Views()
    knn: Annotated[Knn, Parameter(group="k-NN probe")] = Knn()
    workers: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="Processes that read images; by default as the machine allows.",
    )
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="Device type.")
    devices: int | None = Field(
        None, ge=1, description="Devices of each node; by default 1, or as torchrun and srun say."
    )
    nodes: int | None = Field(None, ge=1, description="Machines; by default 1, or as they say.")
    rank_timeout: float = Field(
        10, gt=0, description="Minutes without an answer after which a rank is given up."
    )
    storage_timeout: StorageTimeout = Field(MINUTES, description=STORAGE_TIMEOUT)
    cache: str | None = Field(None, description=CACHE)
    cache_size: CacheSize = Field("200GB", description=CACHE_SIZE)
    loggers: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(
        [], description="Where metrics go beside metrics.jsonl."
    )
    log_every: int = Field(10, ge=1, description="Steps between two reports.")
    checkpoint_minutes: float = Field(10, ge=0, description="Minutes between two checkpoints.")
    keep_checkpoints: int = Field(2, ge=1, description="How many checkpoints are kept.")

    @field_validator("method")
    @classmethod
    def _method_exists(cls, value: str) -> str:
        if value not in method_names():
            close = get_close_matches(value, method_names(), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(
                f"there is no method {value!r}: choose {', '.join(method_names())}{hint}"
            )
        return value
