"""`lewel finetune`: semi-supervised evaluation, backbone and classifier trained on some labels."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from lewel.config.evaluate import FinetuneConfig
from lewel.data.sources.source import Source, Subset
from lewel.errors import UserError, state_of
from lewel.files import user_path
from lewel.ops.randomness import generator
from lewel.ops.ranks import rank
from lewel.progress import show
from lewel.tasks.classify import evaluate_classifier
from lewel.tasks.evaluation import EvaluationRun, Task
from lewel.tasks.outcome import Accuracy


def evaluate_finetuned(run: EvaluationRun) -> dict[str, Any]:
    """Fine-tune on a fraction of the labels."""
    config = run.evaluator.config
    assert isinstance(config, FinetuneConfig)
    subset = labelled_subset(run.evaluator.train, config.labels, config.seed)
    notes = without_labels(subset, config.labels)  # refuses on all ranks alike
    if rank() == 0:
        show(run.console, *notes)
    return {"labelled": len(subset), **evaluate_classifier(run, subset, frozen=False)}


def labelled_subset(source: Source, labels: str, seed: int) -> Source:
    """The images whose labels are used: a fraction of each class, or those that a file names."""
    if labels.endswith("%"):
        return _fraction(source, labels, seed)
    path = user_path(labels)
    if not path.is_file():
        raise UserError(
            f"--labels {labels} {state_of(path)}: expected a fraction such as 1%, or a file of "
            "names."
        )
    return Subset(source, _named(source, labels, path))


def without_labels(subset: Source, labels: str) -> list[str]:
    """A note on classes that have no labelled image; UserError where only one class has some."""
    assert subset.labels is not None and subset.classes is not None
    counts = np.bincount(subset.labels, minlength=len(subset.classes))
    empty = [name for name, count in zip(subset.classes, counts, strict=True) if not count]
    if len(counts) - len(empty) < 2:
        raise UserError(
            f"--labels {labels} has images of one class only, "
            f"{subset.classes[int(counts.argmax())]!r}: name images of two or more."
        )
    shown = f"{', '.join(empty[:3])}{', ...' if len(empty) > 3 else ''}"
    return [
        f"Warning: --labels {labels} has no image of {len(empty):,} of the {len(counts):,} classes "
        f"({shown}): they cannot be learnt."
    ] * bool(empty)


def _named(source: Source, labels: str, file: Path) -> list[int]:
    """The images that the lines of a file name, by their paths or the ends of these."""
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    wanted = {os.path.normpath(line.strip()) for line in text.splitlines() if line.strip()}
    if not wanted:
        raise UserError(f"--labels {labels} is empty: expected the name of an image in each line.")
    names, within = {os.path.basename(name) for name in wanted}, source
    while isinstance(within, Subset):
        within = within.source
    root = str(getattr(within, "root", ""))
    whole: dict[str, int] = {}  # by the path as the data has it
    ends: dict[str, list[int]] = {}
    for index in range(len(source)):
        path = os.path.normpath(source.describe(index))
        if os.path.basename(path) in names:
            whole[path] = index
            full = os.path.normpath(os.path.join(root, path))
            parts = full.split("/")
            for end in {full, *("/".join(parts[start:]) for start in range(len(parts)))} & wanted:
                ends.setdefault(end, []).append(index)
    missing = wanted - ends.keys() - whole.keys()
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(wanted)} images that {labels} names are not in the "
            f"data (for example {min(missing)}): give the data set that the list is for."
        )
    for name in sorted(wanted - whole.keys()):
        if len(ends[name]) > 1:
            one, other = (source.describe(index) for index in ends[name][:2])
            raise UserError(
                f"{labels} names {name}, which {len(ends[name])} images are called (for example "
                f"{one} and {other}): write more of its path."
            )
    return sorted({whole[name] if name in whole else ends[name][0] for name in wanted})


def _fraction(source: Source, labels: str, seed: int) -> Source:
    assert source.labels is not None and source.classes is not None
    try:
        fraction = float(labels[:-1]) / 100
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise UserError(f"--labels {labels}: expected a fraction such as 1%, 10% or 100%.")
    if fraction == 1:
        return source
    chosen = [
        generator(seed, number).permutation(mine)[: max(1, round(fraction * len(mine)))]
        for number in range(len(source.classes))
        for mine in [np.flatnonzero(source.labels == number)]
    ]
    return Subset(source, np.sort(np.concatenate(chosen)))


def finetune(backbone: str, config: FinetuneConfig, out: Path | None, console: Console) -> Accuracy:
    """The accuracy after fine-tuning, cached or computed now."""
    result, file = FINETUNE.evaluate(backbone, config, out, console)
    return Accuracy(file, result)


FINETUNE = Task("finetune", evaluate_finetuned)
