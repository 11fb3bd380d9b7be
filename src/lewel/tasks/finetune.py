"""`lewel finetune`: semi-supervised evaluation, backbone and classifier trained on some labels."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from lewel.config.evaluate import FinetuneConfig
from lewel.data.sources.source import Source, Subset
from lewel.errors import UserError, state_of
from lewel.files import user_path
from lewel.ops.randomness import generator
from lewel.tasks.classify import evaluate_classifier
from lewel.tasks.evaluation import EvaluationRun, Task
from lewel.tasks.outcome import Accuracy


def evaluate_finetuned(run: EvaluationRun) -> dict[str, Any]:
    """Fine-tune on a fraction of the labels."""
    config = run.evaluator.config
    assert isinstance(config, FinetuneConfig)
    subset = labelled_subset(run.evaluator.train, config.labels, config.seed)
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
    wanted = {
        line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    } - {""}
    names = [Path(source.describe(index)).name for index in range(len(source))]
    if not wanted:
        raise UserError(f"--labels {labels} is empty: expected the name of an image in each line.")
    missing = wanted - set(names)
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(wanted)} images that {labels} names are not in the "
            f"data (for example {min(missing)}): give the data set that the list is for."
        )
    return Subset(source, [index for index, name in enumerate(names) if name in wanted])


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
