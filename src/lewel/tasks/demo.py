"""`lewel demo`: the main job on the embedded data, from images to a report."""

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from lewel.config.commands import MapsConfig
from lewel.config.evaluate import FinetuneConfig
from lewel.config.recipes import command_recipe, read_recipe
from lewel.config.resolve import resolve
from lewel.progress import show
from lewel.tasks.finetune import finetune
from lewel.tasks.maps import gallery_files, maps
from lewel.tasks.outcome import Accuracy, Pretrained
from lewel.tasks.pretrain import pretrain
from lewel.tasks.report import report
from lewel.train.run_folder import RunFolder

RECIPE, FEW_LABELS, DATA = "scenes_demo", "scenes_few_labels", "scenes"
# The network is so small that threads wait for each other: one trains, a process reads beside it.
SETTINGS = {"limit": 16000, "workers": 1}


@dataclass(frozen=True)
class Demonstrated:
    """What the demo reached."""

    run: Pretrained
    pretrained: Accuracy  # fine-tuned with few labels
    scratch: Accuracy  # the same labels, randomly initialised
    page: Path
    new: bool  # whether anything had to be computed


def demo(out: Path, seed: int, console: Console) -> Demonstrated:
    """Pre-train, fine-tune with few labels and without pre-training, draw maps, report.

    What an earlier call has finished is not computed again.
    """
    before = known_files(out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        show(console, f"1/4 Pre-training without labels: {RECIPE} on {DATA}")
        config = resolve(read_recipe(RECIPE), {"data": DATA, "seed": seed, **SETTINGS})
        run = pretrain(config, out, console)
        show(console, "2/4 Fine-tuning with few labels, from the pre-trained backbone")
        tuned = FinetuneConfig.model_validate(
            {**command_recipe("finetune", FEW_LABELS), "data": DATA}
        )
        pretrained = finetune(str(out), tuned, None, console)
        show(console, "3/4 The same labels from random initialisation")
        scratch = finetune(str(out), tuned.model_copy(update={"scratch": True}), None, console)
        show(console, "4/4 Maps and report")
        new = known_files(out) != before
        if new or not all(file.is_file() for file in gallery_files(out / "maps")):
            maps(out, [DATA], MapsConfig(), None)
            new = True
        page = out / "report.html"
        if new or not page.is_file():
            page = report([out])
            new = True
    finally:
        torch.set_num_threads(threads)
    return Demonstrated(run, pretrained, scratch, page, new)


def known_files(out: Path) -> list[tuple[Path, int]]:
    """The files that decide the report, with their times."""
    folder = RunFolder(out)
    files = [folder.backbone, out / "results" / "finetune.json"]
    return [(file, file.stat().st_mtime_ns) for file in files if file.is_file()]
