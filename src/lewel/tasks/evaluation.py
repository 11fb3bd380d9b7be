"""How every evaluation runs: its devices and processes, and a result, cached or computed now."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from lewel.config.evaluate import DenseConfig, EvaluateConfig
from lewel.data.sources.source import Source
from lewel.data.workers import workers_explained
from lewel.errors import RunError
from lewel.evaluate.features import Extractor, refuse_not_finite, to_fast_layout
from lewel.evaluate.room import Room
from lewel.files import refuse_unwritable
from lewel.interop.backbones import open_backbone
from lewel.ops.ranks import gather_objects, rank, ranks
from lewel.progress import Bar, plain_console, rank_from_outside, show
from lewel.tasks.evaluator import Evaluator, Opens, open_labelled
from lewel.train.devices import Placement, default_workers, open_fabric, placement, set_arithmetic
from lewel.train.estimate import is_out_of_memory
from lewel.train.fabric import Fabric
from lewel.train.launch import launch
from lewel.train.lost_ranks import WatchedRanks
from lewel.train.resume import refuse_different_ranks


@dataclass
class EvaluationRun:
    """An evaluation on its devices, with all it takes."""

    evaluator: Evaluator
    fabric: Fabric
    place: Placement
    extractor: Extractor
    console: Console

    def bar(self, text: str, total: int) -> Bar:
        """A progress bar on the first rank."""
        return Bar(text, total, self.console, shown=rank() == 0)

    def features(self, *sources: Source) -> list[tuple[Tensor, Tensor]]:
        """Features (N, C) and labels (N,) of sources on rank 0's device, with a progress bar."""
        total = sum(len(source) for source in sources) // ranks()
        with self.bar(f"features of {total:,} images", total) as bar:
            return [readable_features(source, self.extractor, bar.advance) for source in sources]


Work = Callable[[EvaluationRun], dict[str, Any]]


class Task:
    """An evaluation by its name: what it computes, and the data that it opens."""

    def __init__(
        self, name: str, work: Work, opens: Opens = open_labelled, fixed_shapes: bool = True
    ) -> None:
        self.name, self.work, self.opens = name, work, opens
        self.fixed_shapes = fixed_shapes  # of the images

    def evaluate(
        self,
        what: str,
        config: EvaluateConfig,
        out: Path | None,
        console: Console,
        *,
        notes: bool = True,
    ) -> tuple[dict[str, Any], Path]:
        """The result, cached or computed now, and its file."""
        evaluator = Evaluator(what, config, out, self.opens)
        if out is not None and rank_from_outside() == 0:
            refuse_unwritable(out)
        if notes and rank_from_outside() == 0:
            show(console, *dict.fromkeys(evaluator.notes))
        file = evaluator.results.path(self.name)
        place = placement(config.devices, config.nodes)
        if place.starter == "lewel" and place.nodes == 1:  # no other process looks for it
            cached = self.cached(evaluator, console)
            if cached is not None:
                return cached, file
        sync = bool(getattr(config, "sync_batch_norm", False))
        fabric = open_fabric(
            place, config.accelerator, evaluator.config.precision, sync, config.rank_timeout
        )
        if place.ranks > 1 and place.starter == "lewel":
            found = launch(fabric, config.rank_timeout, _in_process, self, what, config, out, place)
            return found, file
        fabric.launch()
        with WatchedRanks(config.rank_timeout):
            return self.find_or_compute(fabric, evaluator, place, console), file

    def cached(self, evaluator: Evaluator, console: Console) -> dict[str, Any] | None:
        """The result that rank 0 has cached, on all ranks; None where there is none."""
        found = None
        if rank() == 0 and not evaluator.config.again:
            found = evaluator.cached(self.name)
            if found is not None and not self.has_all(found, evaluator):
                found = None
        found = gather_objects([found])[0]
        if found is not None and rank() == 0:
            file = evaluator.results.path(self.name)
            line = f"cached in {file}; --recompute evaluates again"
            show(console, line)
        return found

    def find_or_compute(
        self, fabric: Fabric, evaluator: Evaluator, place: Placement, console: Console
    ) -> dict[str, Any]:
        """The cached or computed result, on all ranks."""
        # Copies on other disks have other times and places; their names and labels are compared.
        own = ("data", "image_files")
        settings = {key: one for key, one in evaluator.settings().items() if key not in own}
        refuse_different_ranks(json.dumps(settings, sort_keys=True))
        cached = self.cached(evaluator, console)
        if cached is None and rank() == 0:
            refuse_unwritable(evaluator.results.folder)
        return self.compute(fabric, evaluator, place, console) if cached is None else cached

    @staticmethod
    def has_all(cached: dict[str, Any], evaluator: Evaluator) -> bool:
        """Whether a cached result has its predictions, where they are wanted."""
        if not getattr(evaluator.config, "save_predictions", False):
            return True
        kept = cached.get("predictions")
        return kept is not None and (evaluator.results.folder.parent / kept).is_dir()

    def compute(
        self, fabric: Fabric, evaluator: Evaluator, place: Placement, console: Console
    ) -> dict[str, Any]:
        """Compute a result on all ranks; the first one keeps it."""
        begun = time.monotonic()
        try:
            with workers_explained():
                found = self.work(self.open(fabric, evaluator, place, console))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise RunError(
                f"{fabric.device} ran out of memory: use a smaller --batch-size, fewer images by "
                "--limit, or --accelerator cpu."
            ) from None
        about = {
            "task": self.name,
            "backbone": evaluator.network.name,
            "data": evaluator.train.name,
        }
        took = {"seconds": round(time.monotonic() - begun, 1), "written": time.strftime("%F %T%z")}
        result: dict[str, Any] = json.loads(json.dumps({**about, **found, **took}))  # as cached
        if rank() == 0:
            evaluator.keep(self.name, result)
            evaluator.remove_checkpoints()
        return result

    def open(
        self, fabric: Fabric, evaluator: Evaluator, place: Placement, console: Console
    ) -> EvaluationRun:
        """An evaluation with its backbone on its device."""
        config, network = evaluator.config, evaluator.network
        set_arithmetic(config.precision, fixed_shapes=self.fixed_shapes)
        torch.manual_seed(config.seed)
        backbone = open_backbone(
            evaluator.what, network, partial=config.partial, random_init=evaluator.untrained
        ).to(fabric.device)
        to_fast_layout(backbone, fabric.device)
        workers = config.workers
        extractor = Extractor(
            backbone,
            network.image_size,
            network.mean,
            network.std,
            fabric.device,
            min(config.batch_size, 256),
            default_workers(fabric.device, place.cores) if workers is None else workers,
            fabric.autocast,
            Room(evaluator.results.folder),
        )
        return EvaluationRun(evaluator, fabric, place, extractor, console)

    def evaluate_each_lr(
        self, what: str, config: DenseConfig, out: Path | None, console: Console, metric: str
    ) -> tuple[dict[str, Any], Path]:
        """The result of the best learning rate; each rate is an evaluation of its own."""
        found: dict[str, dict[str, Any]] = {}
        evaluate = partial(self.evaluate, what, out=out, console=console)
        for rate in config.rates:
            one = config.model_copy(update={"lr": f"{rate:g}"})
            if len(config.rates) > 1:
                show(console, f"lr {rate:g}:")
            found[one.lr], file = evaluate(one, notes=rate == config.rates[0])
        if len(found) == 1:
            return found[config.lr], file
        best = max(found, key=lambda rate: float(found[rate][metric]))
        by_lr = {rate: one[metric] for rate, one in found.items()}
        chosen = {**found[best], "by_lr": by_lr, "selected_on": "the validation set"}
        if rank() == 0:
            Evaluator(what, config, out, self.opens).keep(self.name, chosen)
        return chosen, file


def _in_process(
    fabric: Fabric,
    task: Task,
    what: str,
    config: EvaluateConfig,
    out: Path | None,
    place: Placement,
) -> dict[str, Any]:
    """What each process that `launch` starts does."""
    evaluator = Evaluator(what, config, out, task.opens)
    return task.find_or_compute(fabric, evaluator, place, plain_console())


def readable_features(
    source: Source, extractor: Extractor, advance: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Features (N, C) and labels (N,) of a source, on rank 0's device; a corrupt image ends it."""
    indices = np.arange(len(source))
    rows, readable = extractor.gathered_features(source, indices, advance)
    corrupt = (~readable).nonzero().flatten().tolist()
    if corrupt:
        raise RunError(
            f"{len(corrupt)} of {len(source)} images are corrupt, for example "
            f"{source.describe(corrupt[0])}: repair or remove them."
        )
    refuse_not_finite(rows, source, indices)
    assert source.labels is not None
    return rows, torch.tensor(source.labels).to(rows.device)
