"""A backbone, the data that it is evaluated on, and the results cached in its folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lewel.config.evaluate import FREE, DenseConfig, EvaluateConfig, TrainConfig
from lewel.config.settings import storage_of
from lewel.data.pack.urls import shown
from lewel.data.sources.check import refuse_identical
from lewel.data.sources.file_list import Lists
from lewel.data.sources.open import open_data
from lewel.data.sources.source import (
    Data,
    Source,
    annotation_files,
    digest_of_files,
    digest_of_times,
    digest_with_labels,
    image_files,
)
from lewel.errors import UserError, state_of
from lewel.evaluate.results import Results, fingerprint, unchanged_since
from lewel.evaluate.statistics import warnings_of
from lewel.files import refuse_within, user_path
from lewel.interop.backbones import Network, find_network, open_backbone
from lewel.interop.lookup import folder_for, weights_file
from lewel.interop.published import Colours
from lewel.train.devices import chosen_precision

# Training and validation set; notes on them are appended to the list.
Opens = Callable[[EvaluateConfig, Network, list[str]], tuple[Source, Source]]


def open_labelled(
    config: EvaluateConfig, network: Network, notes: list[str]
) -> tuple[Source, Source]:
    """Images with classes: what most evaluations take."""
    data = open_data(
        config.data,
        image_size=network.image_size,
        limit=config.limit,
        seed=config.seed,
        classes=config.classes,
        storage=storage_of(config),
        lists=Lists.beside(None),
    )
    notes += data.notes
    return labelled(data, shown(config.data))


def labelled(data: Data, name: str) -> tuple[Source, Source]:
    """The labelled training and validation set, or the reason why there are none."""
    train, val = data.train, data.val
    if train is None or val is None or train.labels is None or val.labels is None:
        because = f" ({' '.join(data.notes).rstrip('.')})" if data.notes else ""
        raise UserError(
            f"{name} has no labels to evaluate with{because}: give the same class folders in "
            "train/ and val/, a CSV with path and label, or a data set's name."
        )
    assert train.classes is not None
    if len(train.classes) < 2:
        raise UserError(
            f"{name} has one class, {train.classes[0]!r}: every answer would be right; expected "
            "two or more."
        )
    counts = np.bincount(train.labels, minlength=len(train.classes))
    if counts.min() < 2:
        few = train.classes[int(counts.argmin())]
        raise UserError(
            f"The class {few!r} of {name} has {counts.min()} image to train on, expected 2 or "
            "more: add some, raise --limit, or leave it out by --classes."
        )
    names = {val.describe(i) for i in range(len(val))}
    shared = names.intersection(train.describe(i) for i in range(len(train)))
    if shared:
        raise UserError(
            f"{len(shared)} images of {name} are both in the training and the validation set "
            f"(for example {min(shared)}): list each image once."
        )
    return train, val


class Evaluator:
    """A backbone, the data that it is evaluated on, and the folder of its results."""

    def __init__(
        self, what: str, config: EvaluateConfig, out: Path | None, opens: Opens = open_labelled
    ) -> None:
        precision = chosen_precision(config.precision, config.accelerator)
        self.what, self.config = what, config.model_copy(update={"precision": precision})
        self.network = find_network(what, config.backbone, config.image_size)
        file = weights_file(what)
        if out is not None:
            refuse_within(out, config.data)
            if os.path.lexists(out) and not out.is_dir():
                raise UserError(f"--out {out} {state_of(out)}: expected a folder for the results.")
        self.results = Results(out or folder_for(what))
        self.untrained = config.untrained or getattr(config, "scratch", False)
        self.weights = "untrained" if self.untrained else fingerprint(file) if file else what
        self.notes: list[str] = []
        self.train, self.val = opens(config, self.network, self.notes)
        self.notes += warnings_of(len(self.val))
        refuse_identical(self.train, shown(config.data))
        self.data = {
            "train": digest_with_labels(self.train)[:16],
            "val": digest_with_labels(self.val)[:16],
        }
        self.masks = [*annotation_files(self.train), *annotation_files(self.val)]
        labels = user_path(getattr(config, "labels", "%"))
        self.labels = [labels] if labels.is_file() else []  # of `finetune`
        named = config.backbone is not None and file is not None  # a third-party checkpoint
        name, stem, width = self.network[:3]
        colours = Colours(self.network.mean, self.network.std)
        partial = " partial" * config.partial
        known = not (self.untrained or named or config.partial)
        self.added = {
            "network": None if known else f"{name} {stem} {width}{partial}",
            "colours": None if file or colours == Colours() else colours,  # of a name
            "image_files": (digest_of_times(self.images()) or "")[:16] or None,
            "mask_files": digest_of_files(self.masks)[:16] if self.masks else None,
            "labelled": fingerprint(labels) if self.labels else None,
        }

    def images(self) -> Iterator[Path]:
        """The image files that decide the result."""
        return chain(image_files(self.train), image_files(self.val))

    def settings(self) -> dict[str, Any]:
        """What identifies an evaluation: with equal settings the result is the same."""
        trains = isinstance(self.config, TrainConfig | DenseConfig)
        trains = trains and not getattr(self.config, "fast", False)
        free = FREE if trains else FREE | {"batch_size"}
        chosen = self.config.model_dump(mode="json", exclude=free | {"backbone", "partial"})
        return {
            **chosen,
            "data": shown(self.config.data),
            "image_size": self.network.image_size,
            "weights": self.weights,
            **self.data,
            **{key: value for key, value in self.added.items() if value is not None},
        }

    def still_right(self, result: dict[str, Any]) -> bool:
        """Whether an older result, which does not name all that decided it, can be used."""
        own = self.results.folder.parent.resolve() == folder_for(self.what).resolve()
        return (
            result.get("backbone") == self.network.name
            and not self.config.partial
            and (own or not self.untrained)  # another --out may hold another network's
            and unchanged_since(chain(self.images(), self.masks, self.labels), result)
        )

    def cached(self, task: str) -> dict[str, Any] | None:
        """The result of an identical evaluation, if there is one."""
        found: dict[str, Any] | None = self.results.find(task, self.settings(), self.still_right)
        if found is not None and weights_file(self.what) is not None and not self.untrained:
            # An older version may have evaluated weights that are refused now.
            open_backbone(self.what, self.network, partial=self.config.partial)
        return found

    def keep(self, task: str, result: dict[str, Any]) -> None:
        """Cache a result."""
        self.results.keep(task, self.settings(), result, self.still_right)

    def training_folder(self) -> Path:
        """The folder of an evaluation's metrics and, until its result is kept, its checkpoints."""
        settings = json.dumps(self.settings(), sort_keys=True)
        name = hashlib.sha256(settings.encode()).hexdigest()[:12]
        # Version 0.1's name: a training that it began resumes.
        return self.results.folder / f"learning-{name}"

    def remove_checkpoints(self) -> None:
        """Delete the checkpoints; the result and its metrics stay."""
        shutil.rmtree(self.training_folder() / "checkpoints", ignore_errors=True)
