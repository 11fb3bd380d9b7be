"""`lewel linear`: a linear classifier on frozen features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from lewel.config.evaluate import LinearConfig
from lewel.evaluate.copies import copies_warning, fraction_of_copies
from lewel.evaluate.linear import LEARNING_RATES, WEIGHT_DECAYS, sweep
from lewel.evaluate.scores import accuracy
from lewel.ops.ranks import on_rank_0
from lewel.progress import rank_from_outside, show
from lewel.tasks.classify import evaluate_classifier
from lewel.tasks.evaluation import EvaluationRun, Task
from lewel.tasks.outcome import Accuracy


def evaluate_linear(run: EvaluationRun) -> dict[str, Any]:
    """The paper's protocol: a linear classifier trained on random crops, the backbone frozen."""
    return evaluate_classifier(run, run.evaluator.train, frozen=True)


def evaluate_linear_probe(run: EvaluationRun) -> dict[str, Any]:
    """A linear probe on cached features: a sweep over learning rates and weight decays at once."""
    evaluator, config = run.evaluator, run.evaluator.config
    assert isinstance(config, LinearConfig) and evaluator.train.classes is not None
    (features, labels), (queries, truth) = run.features(evaluator.train, evaluator.val)
    classes = evaluator.train.classes
    settings = {"epochs": config.epochs, "batch_size": config.batch_size, "seed": config.seed}

    def work(beat: Callable[[], None]) -> dict[str, Any]:
        copies = fraction_of_copies(features, queries)
        scores, rate, decay = sweep(
            features,
            labels,
            queries,
            len(classes),
            advance=lambda images: beat(),
            **settings,
        )
        about = {"lr": rate, "weight_decay": decay, "copies": round(copies, 4)}
        return {**about, **accuracy(scores, truth, classes)}

    many = len(LEARNING_RATES) * len(WEIGHT_DECAYS)
    with run.console.status(f"training {many} linear classifiers at once"):
        return on_rank_0(work, run.fabric.device)


def linear(backbone: str, config: LinearConfig, out: Path | None, console: Console) -> Accuracy:
    """The accuracy of a linear classifier, cached or computed now."""
    task = LINEAR_PROBE if config.fast else LINEAR
    result, file = task.evaluate(backbone, config, out, console)
    if rank_from_outside() == 0:
        show(console, *copies_warning(result))
    return Accuracy(file, result)


LINEAR = Task("linear", evaluate_linear)
LINEAR_PROBE = Task("linear_fast", evaluate_linear_probe)  # version 0.1's name of its results
