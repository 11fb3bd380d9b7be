"""Judging a backbone, from what the user asks to a result in its folder."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from lewel.backbones import Network, find_network, open_backbone
from lewel.data.sources import Data, Source, digest_with_truth, open_data
from lewel.errors import RunError, UserError
from lewel.eval.features import Extractor
from lewel.eval.knn import knn_scores
from lewel.eval.results import Results, fingerprint
from lewel.eval.scores import judge
from lewel.finding import folder_for, weights_file
from lewel.judge_config import DetectConfig, JudgeConfig, KnnConfig, LearnConfig, SegmentConfig
from lewel.ops.ranks import rank, ranks
from lewel.train.devices import Placement, default_workers, open_fabric, placement
from lewel.train.engine import Fabric
from lewel.train.launch import launch

USUAL = 20  # neighbours, as in the probe of a run

# What changes how an answer is found, and not what it is.
FREE = {"again", "workers", "accelerator", "devices", "nodes"}


Opens = Callable[[JudgeConfig, Network], tuple[Source, Source]]  # to learn from, to be judged on


def open_labelled(config: JudgeConfig, network: Network) -> tuple[Source, Source]:
    """Images with classes: what most ways of judging take."""
    data = open_data(
        config.data,
        image_size=network.image_size,
        limit=config.limit,
        seed=config.seed,
        classes=config.classes,
    )
    return labelled(data, config.data)


def labelled(data: Data, name: str) -> tuple[Source, Source]:
    """The two labelled splits, or one sentence on why they can't be judged by."""
    train, val = data.train, data.val
    if train is None or val is None or train.labels is None or val.labels is None:
        because = f" ({data.notes[-1].rstrip('.')})" if data.notes else ""
        raise UserError(
            f"{name} has no labels to judge by{because}: give the same class folders in train/ and "
            "val/, a CSV with path and label, or a data set's name."
        )
    assert train.classes is not None
    counts = np.bincount(train.labels, minlength=len(train.classes))
    if counts.min() < 2:
        few = train.classes[int(counts.argmin())]
        raise UserError(
            f"The class {few!r} of {name} has {counts.min()} image to learn from, expected 2 or "
            "more: add some, raise --limit, or leave it out by --classes."
        )
    shared = {train.describe(i) for i in range(len(train))} & {
        val.describe(i) for i in range(len(val))
    }
    if shared:
        raise UserError(
            f"{len(shared)} images of {name} are both to learn from and to be judged on (for "
            f"example {min(shared)}): list each image once."
        )
    return train, val


class Subject:
    """A backbone that is judged on data, and the folder of its results."""

    def __init__(
        self, what: str, config: JudgeConfig, out: Path | None, opens: Opens = open_labelled
    ) -> None:
        self.what, self.config = what, config
        self.network = find_network(what, config.backbone, config.image_size)
        file = weights_file(what)
        self.results = Results(out or folder_for(what))
        self.untrained = config.untrained or getattr(config, "scratch", False)
        self.weights = "untrained" if self.untrained else fingerprint(file) if file else what
        self.train, self.val = opens(config, self.network)
        self.data = {
            "train": digest_with_truth(self.train)[:16],
            "val": digest_with_truth(self.val)[:16],
        }

    def question(self) -> dict[str, Any]:
        """What is asked: two equal questions have the same answer."""
        learns = isinstance(self.config, LearnConfig | SegmentConfig | DetectConfig)
        learns = learns and not getattr(self.config, "fast", False)
        free = FREE if learns else FREE | {"batch_size"}
        asked = self.config.model_dump(mode="json", exclude=free | {"backbone", "partial"})
        return {
            **asked,
            "image_size": self.network.image_size,
            "weights": self.weights,
            **self.data,
        }


@dataclass
class Job:
    """A question that is being answered, with all it takes."""

    subject: Subject
    fabric: Fabric
    place: Placement
    extractor: Extractor
    console: Console

    def features(self, *sources: Source) -> list[tuple[Tensor, Tensor]]:
        """Features (N, C) and labels (N,) of sources, with a progress bar."""
        total = sum(len(source) for source in sources) // ranks()
        columns = (TextColumn("{task.description}"), BarColumn(20), TimeRemainingColumn())
        hidden = rank() != 0
        with Progress(*columns, console=self.console, disable=hidden, transient=True) as progress:
            bar = progress.add_task(f"features of {total:,} images", total=total)

            def advance(images: int) -> None:
                progress.advance(bar, images)

            return [readable_features(source, self.extractor, advance) for source in sources]


Work = Callable[[Job], dict[str, Any]]


def ask(
    task: str,
    work: Work,
    what: str,
    config: JudgeConfig,
    out: Path | None,
    console: Console,
    opens: Opens = open_labelled,
) -> tuple[dict[str, Any], Path]:
    """The answer to a question about a backbone, from its results or computed now; its file."""
    subject = Subject(what, config, out, opens)
    question, results = subject.question(), subject.results
    known = None if config.again else results.answer(task, question)
    if known is not None:
        word = f"Known from {results.path(task)}; --again computes it anew."
        console.print(word, highlight=False, markup=False, soft_wrap=True)
        return known, results.path(task)
    place = placement(config.devices, config.nodes)
    fabric = open_fabric(place, config.accelerator, config.precision, synchronised(config))
    if place.ranks > 1 and place.starter == "lewel":
        launch(fabric, answer_in_process, task, work, what, config, out, opens, place)
    else:
        fabric.launch()
        answer(fabric, subject, task, work, place, console)
    kept = results.answer(task, question)
    if kept is None:  # another rank than the first
        return {}, results.path(task)
    return kept, results.path(task)


def synchronised(config: JudgeConfig) -> bool:
    """Whether batch norms are to take their statistics over all devices."""
    return bool(getattr(config, "sync_batch_norm", False))


def answer_in_process(
    fabric: Fabric,
    task: str,
    work: Work,
    what: str,
    config: JudgeConfig,
    out: Path | None,
    opens: Opens,
    place: Placement,
) -> None:
    """What each process that `launch` starts does."""
    answer(fabric, Subject(what, config, out, opens), task, work, place, Console())


def answer(
    fabric: Fabric, subject: Subject, task: str, work: Work, place: Placement, console: Console
) -> None:
    """Compute an answer on all ranks; the first one keeps it."""
    config, network = subject.config, subject.network
    begun = time.monotonic()
    torch.manual_seed(config.seed)
    backbone = open_backbone(
        subject.what, network, partial=config.partial, untrained=subject.untrained
    ).to(fabric.device)
    extractor = Extractor(
        backbone,
        network.image_size,
        network.mean,
        network.std,
        fabric.device,
        min(config.batch_size, 256),
        default_workers(fabric.device, place.devices) if config.workers is None else config.workers,
        fabric.autocast,
    )
    found = work(Job(subject, fabric, place, extractor, console))
    if rank() == 0:
        about = {"task": task, "backbone": network.name, "data": subject.train.name}
        took = {"seconds": round(time.monotonic() - begun, 1), "written": time.strftime("%F %T%z")}
        subject.results.keep(task, subject.question(), {**about, **found, **took})


def judge_knn(job: Job) -> dict[str, Any]:
    """The accuracy for every k; all else for k = 20, or the first k asked for.

    The best k is not chosen by the images that it is judged on.
    """
    subject, config = job.subject, job.subject.config
    assert isinstance(config, KnnConfig) and subject.train.classes is not None
    (bank, labels), (queries, truth) = job.features(subject.train, subject.val)
    ks = sorted({k for k in config.neighbours if k <= len(bank)}) or [len(bank)]
    classes = subject.train.classes
    scores = knn_scores(
        bank, labels, queries, ks, temperature=config.temperature, classes=len(classes)
    )
    judged = [judge(score, truth, classes) for score in scores]
    chosen = USUAL if USUAL in ks else ks[0]
    sweep = {str(k): one["top1"] for k, one in zip(ks, judged, strict=True)}
    return {"k": chosen, "sweep": sweep, "bank": len(bank), **judged[ks.index(chosen)]}


def readable_features(
    source: Source, extractor: Extractor, advance: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Features (N, C) and labels (N,) of a source; an image that can't be read ends it."""
    rows, readable = extractor.all(source, np.arange(len(source)), advance)
    bad = (~readable).nonzero().flatten().tolist()
    if bad:
        raise RunError(
            f"{len(bad)} of {len(source)} images can't be read, for example "
            f"{source.describe(bad[0])}: mend or remove them."
        )
    assert source.labels is not None
    return rows, torch.from_numpy(source.labels)
