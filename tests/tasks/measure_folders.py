"""What `lewel pretrain FOLDER --budget 10m` reaches on five folders, beside a recipe by hand.

    python -m tests.tasks.measure_folders DATA OUT docs/measured/folders.json --only scenes

DATA holds photos-200, tiny-imagenet-100 and VOCdevkit/VOC2012. Each row of the file is a folder,
a way (auto, by hand, random init) and a seed; rows that are there are not measured again. Leave the
machine alone meanwhile: a budget is wall-clock time.
"""

import json
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lewel.config.configure import configure
from lewel.data.sources.open import open_data
from lewel.tasks.auto_facts import gather, images_per_second

MINUTES = 10
TRAINING = 0.85  # of the minutes, as in the rules
TINY = "tinyimagenet_lewel_m_15min"
SHOWN = ("method", "backbone", "stem", "width", "image_size", "batch_size", "epochs", "limit")


class Folder(NamedTuple):
    """Images without labels for training, the recipe by hand, and how both are evaluated."""

    data: Callable[[Path, Path], str]
    recipe: str
    evaluate: tuple[str, ...]  # words of a command, in which {data} is the folder of all data


def few(data: Path, out: Path) -> str:
    """2,000 images of Tiny-ImageNet-100, 20 of each class, with its validation set."""
    folder = out / "tiny-2000"
    for kind, most in (("train", 20), ("val", 50)):
        for label in sorted((data / "tiny-imagenet-100" / kind).iterdir()):
            place = folder / kind / label.name
            place.mkdir(parents=True, exist_ok=True)
            for image in sorted(label.iterdir())[:most]:
                (place / image.name).exists() or (place / image.name).hardlink_to(image)
    return str(folder)


TINY_KNN = ("knn", "--data", "{data}/tiny-imagenet-100")
VOC = ("segment", "--data", "{data}/VOCdevkit/VOC2012", "--recipe", "segment_voc_small")
FOLDERS = {
    "200 photos": Folder(lambda data, out: str(data / "photos-200"), TINY, TINY_KNN),
    "2,000 of Tiny-ImageNet-100": Folder(few, TINY, TINY_KNN),
    "Tiny-ImageNet-100": Folder(lambda data, out: str(data / "tiny-imagenet-100"), TINY, TINY_KNN),
    "scenes": Folder(lambda data, out: "scenes", "scenes_demo", ("knn", "--data", "scenes")),
    "VOC 2012": Folder(lambda data, out: str(data / "VOCdevkit/VOC2012/JPEGImages"), TINY, VOC),
}


def call(words: list[str], log: Path) -> float:
    """Run a `lewel` command -> its seconds."""
    begun = time.monotonic()
    with log.open("a") as file:
        command = [sys.executable, "-m", "lewel", *words]
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True)
    return time.monotonic() - begun


def epochs_by_hand(data: str, recipe: str) -> int:
    """Epochs of a recipe that take the time of the budget, by the measure of the rules."""
    config, opened = configure(data, recipe, {}), open_data(data, image_size=32)
    facts, _ = gather(opened, {}, None)
    speed = images_per_second(config, opened, facts)
    return max(1, int(TRAINING * 60 * MINUTES * speed / len(opened.unlabelled)))


def evaluate(folder: Folder, data: Path, run: Path, *more: str) -> float:
    """k-NN accuracy or mIoU, in percent."""
    task, *words = (word.replace("{data}", str(data)) for word in folder.evaluate)
    place = run.parent / f"{run.name}-{task}{'-'.join(more)}"
    call([task, str(run), *words, *more, "--out", str(place)], run.parent / "log.txt")
    (file,) = (place / "results").glob("*.json")
    found = json.loads(file.read_text())[-1]["result"]
    return round(100 * float(found["top1" if task == "knn" else "miou"]), 2)


def measure(name: str, way: str, seed: int, data: Path, out: Path) -> dict[str, Any]:
    """One row of the file."""
    folder, place = FOLDERS[name], out / name.replace(" ", "-").replace(",", "")
    place.mkdir(parents=True, exist_ok=True)
    images = folder.data(data, out)
    run = place / f"{'by-hand' if way == 'by hand' else 'auto'}-{seed}"
    words = ["pretrain", images, "--seed", str(seed), "--out", str(run)]
    row: dict[str, Any] = {"folder": name, "way": way, "seed": seed}
    if way == "random init":
        flag = "--scratch" if folder.evaluate[0] == "segment" else "--random-init"
        return row | {"number": evaluate(folder, data, run, flag)}
    if way == "auto":
        words += ["--budget", f"{MINUTES}m"]
    else:
        words += ["--recipe", folder.recipe, "--epochs", str(epochs_by_hand(images, folder.recipe))]
    seconds = call(words, place / "log.txt")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    chosen = {key: settings[key] for key in SHOWN if settings.get(key) is not None}
    return row | {
        "number": evaluate(folder, data, run),
        "minutes": round(seconds / 60, 1),
        "settings": chosen | {"lr": settings["optim"]["lr"]},
    }


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    rows = json.loads(given.file.read_text()) if given.file.exists() else []
    done = {(row["folder"], row["way"], row["seed"]) for row in rows}
    for seed in range(given.seeds):
        for name in (name for name in FOLDERS if given.only in name):
            for way in ("auto", "by hand", "random init"):
                if (name, way, seed) not in done:
                    rows.append(measure(name, way, seed, given.data.absolute(), given.out))
                    given.file.write_text(json.dumps(rows, indent=1) + "\n")
                    print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
