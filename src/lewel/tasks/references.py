"""Record the reference of a recipe: `python -m lewel.tasks.references RECIPE RUN... > FILE`."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lewel.config.identity import follows
from lewel.config.recipes import read_recipe
from lewel.config.references import METRICS, settings_digest
from lewel.config.resolve import read_config
from lewel.errors import UserError
from lewel.pages.gallery import Gallery
from lewel.pages.reference import Numbers, means_at
from lewel.tasks.run_reader import read_run
from lewel.train.run_folder import RunFolder

ROWS = 20  # of a metric that is written at every step


def record(recipe: str, runs: list[Path]) -> dict[str, Any]:
    """The content of recipes/reference/RECIPE.yaml from finished runs of that recipe."""
    if not runs:
        raise UserError("Which runs? Give the folders of one or several runs of the recipe.")
    read = [read_run(run, no_gallery) for run in runs]
    configs = [read_config(RunFolder(run).config) for run in runs]
    for run, config, data in zip(runs, configs, read, strict=True):
        if not follows(config, read_recipe(recipe)) or data.progress != "finished":
            raise UserError(f"{run} is no finished run of the recipe {recipe}.")
    images = {data.facts["Images"] for data in read}
    if len(images) > 1:
        raise UserError(f"The runs have different numbers of images: {', '.join(sorted(images))}.")
    epochs, metrics = configs[0].epochs, [data.metrics for data in read]
    width = epochs / ROWS
    centres = np.array([(row + 0.5) * width for row in range(ROWS)], np.float64)
    probed = sorted({epoch for one in metrics for epoch in one.points("knn")[:, 0].tolist()})
    seeds = ", ".join(str(config.seed) for config in configs)
    out: dict[str, Any] = {
        "source": f"{len(runs)} runs, seeds {seeds}" if runs[1:] else f"one run, seed {seeds}",
        "images": int(images.pop().split()[0].replace(",", "")),
        "settings": settings_digest(recipe),
        "width": round(width, 6),
    }
    for key in METRICS:
        at, over = (np.array(probed, np.float64), 0.0) if key == "knn" else (centres, width)
        out[key] = rows(at, np.stack([means_at(one, key, at, over) for one in metrics]))
    return out


def rows(epochs: Numbers, values: Numbers) -> list[list[float]]:
    """Epoch, mean, lowest and highest of the runs' values (R, N), where all runs have one."""
    whole = np.isfinite(values).all(0)
    columns = (epochs, values.mean(0), values.min(0), values.max(0))
    return [[float(f"{x:.4g}") for x in row] for row in np.stack(columns, 1)[whole]]


def no_gallery(run: Path) -> Gallery | None:
    """A reference needs no maps."""
    return None


if __name__ == "__main__":
    try:
        found = record(sys.argv[1], [Path(run) for run in sys.argv[2:]])
    except UserError as error:
        sys.exit(str(error))
    print(yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=120), end="")
