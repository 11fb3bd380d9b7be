"""Commands that work, small data, and the check that a wrong one ends with one message."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lewel.cli.main import run

CPU = ["--workers", "0", "--accelerator", "cpu"]
SMALL = [*CPU, "--limit", "8", "--iterations", "1", "--batch-size", "4"]
FCN = ["--crop", "32", "--channels", "4", "--auxiliary-channels", "4"]
RCNN = ["--recipe", "detect_scenes_small", "--val-limit", "2"]
# What follows the backbone in the shortest command of each kind.
EVALUATIONS = {
    "knn": CPU,
    "linear": [*CPU, "--epochs", "1"],
    "linear --fast": [*CPU, "--epochs", "1"],
    "finetune": [*CPU, "--epochs", "1", "--batch-size", "8"],
}
DENSE = {"segment": [*SMALL, *FCN], "detect": [*SMALL, *RCNN]}
OTHERS = {
    "maps": ["DATA", "--limit", "2"],
    "where": ["--data", "DATA", "--limit", "4"],
    "embed": ["DATA", "--limit", "4", "--workers", "0"],
    "export": ["--to", "onnx"],
}


def images(folder: Path, classes: dict[str, int], *, same: bool = False, size: int = 20) -> Path:
    """Noise in class folders, or everywhere the same noise."""
    first = 50 if folder.name == "val" else 0  # other images than in train/
    for number, (name, many) in enumerate(classes.items(), first):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(many):
            draw = np.random.default_rng(0 if same else 1000 * number + index)
            pixels = draw.integers(0, 255, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


def masks(folder: Path, values: list[int]) -> Path:
    """Images with masks of one value each."""
    images(folder, {"images": len(values)}, size=40)
    (folder / "masks").mkdir()
    for index, value in enumerate(values):
        Image.fromarray(np.full((40, 40), value, np.uint8)).save(folder / "masks" / f"{index}.png")
    return folder


def words_of(command: str, backbone: Path, data: Path | str | None = None) -> list[str]:
    """A command line that works, unless its backbone or data do not."""
    name, *flags = command.split()
    usual = {"segment": backbone.parent / "masks", "detect": "scenes"}
    data = str(data or usual.get(name, backbone.parent / "data"))
    if command in OTHERS:
        return [name, str(backbone), *(data if w == "DATA" else w for w in OTHERS[command])]
    return [name, str(backbone), "--data", data, *{**EVALUATIONS, **DENSE}[command], *flags]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that ends with exit code 2."""
    capsys.readouterr()
    assert run(words) == 2, words
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1, said
    return said
