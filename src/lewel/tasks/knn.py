"""`lewel knn`: accuracy by the nearest neighbours among labelled images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from lewel.config.evaluate import KnnConfig
from lewel.evaluate.copies import copies_warning, fraction_of_copies
from lewel.evaluate.knn import knn_best
from lewel.evaluate.scores import accuracy_of_best
from lewel.ops.ranks import on_rank_0, rank
from lewel.progress import rank_from_outside, show
from lewel.tasks.evaluation import EvaluationRun, Task
from lewel.tasks.outcome import Accuracy

USUAL = 20  # neighbours, as in the probe of a run


def evaluate_knn(run: EvaluationRun) -> dict[str, Any]:
    """The accuracy for every k; all else for k = 20, or the first k given.

    The best k is not chosen on the validation set.
    """
    evaluator, config = run.evaluator, run.evaluator.config
    assert isinstance(config, KnnConfig) and evaluator.train.classes is not None
    (bank, labels), (queries, truth) = run.features(evaluator.train, evaluator.val)
    size, classes = len(labels), evaluator.train.classes
    ks = sorted({k for k in config.neighbours if k <= size}) or [size]
    larger = [k for k in config.neighbours if k > size]
    if larger and "neighbours" in config.model_fields_set and rank() == 0:
        show(
            run.console,
            f"--neighbours {larger[0]} is more than the {size:,} labelled images: "
            f"the accuracy is for k = {', '.join(map(str, ks))}.",
        )
    settings = {"temperature": config.temperature, "classes": len(classes)}
    settings["streamed"] = run.extractor.room is not None and run.extractor.room.elsewhere

    def work(beat: Callable[[], None]) -> tuple[float, list[dict[str, Any]]]:
        copies = fraction_of_copies(bank, queries)  # knn_best normalises the bank in place
        found = knn_best(bank, labels, queries, ks, beat=beat, **settings)  # type: ignore[arg-type]
        return copies, [accuracy_of_best(best, truth, classes) for best in found]

    copies, by_k = on_rank_0(work, run.fabric.device)
    chosen = USUAL if USUAL in ks else ks[0]
    sweep = {str(k): one["top1"] for k, one in zip(ks, by_k, strict=True)}
    about = {"k": chosen, "sweep": sweep, "bank": size, "copies": round(copies, 4)}
    return {**about, **by_k[ks.index(chosen)]}


def knn(backbone: str, config: KnnConfig, out: Path | None, console: Console) -> Accuracy:
    """The accuracy of a backbone, cached or computed now."""
    result, file = KNN.evaluate(backbone, config, out, console)
    if rank_from_outside() == 0:
        show(console, *copies_warning(result))
    return Accuracy(file, result)


KNN = Task("knn", evaluate_knn)
