"""What `lewel pretrain FOLDER --budget 10m` reaches on five folders, beside a recipe by hand.

    python -m tests.tasks.measure_folders DATA OUT docs/measured/folders.json --jobs 2

DATA holds photos-200, tiny-imagenet-100 and VOCdevkit/VOC2012. First the speed of the machine
decides the settings of each folder, for ten minutes on all cores: leave it alone for this minute or
two. Then each is trained by these settings, on one thread, and evaluated. Each row of the file is a
folder, a way (auto, by hand, random init) and a seed; rows that are there are not measured again.
"""

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from threading import Lock
from typing import Any, NamedTuple

import yaml

from lewel.config.configure import configure
from lewel.config.identity import differences
from lewel.config.methods import as_recipe
from lewel.data.sources.open import open_data
from lewel.tasks.auto import settings
from lewel.tasks.auto_facts import gather, images_per_second

MINUTES = 10
TRAINING = 0.85  # of the minutes, as in the rules
TINY = "tinyimagenet_lewel_m_15min"
RANDOM = "random init"
COST = ("method", "backbone", "stem", "width", "image_size", "batch_size")  # of a sample
SHOWN = (*COST, "epochs", "limit")


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
    """Run a `lewel` command on one thread -> its seconds."""
    begun = time.monotonic()
    with log.open("a") as file:
        command, one = [sys.executable, "-m", "lewel", *words], {"OMP_NUM_THREADS": "1"}
        env = {**os.environ, **one}
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True, env=env)
    return time.monotonic() - begun


def plan(folder: Folder, images: str) -> dict[str, Any]:
    """The settings of both ways, by the speed of this machine; at equal cost as many epochs."""
    chosen = as_recipe(settings(images, None, {}, None, f"{MINUTES}m").config)
    config, opened = configure(images, folder.recipe, {}), open_data(images, image_size=32)
    by_hand = as_recipe(config)
    if all(by_hand[key] == chosen[key] for key in COST) and not chosen["limit"]:
        epochs = chosen["epochs"]
    else:
        speed = images_per_second(config, opened, gather(opened, {}, None)[0], 60 * MINUTES)
        epochs = max(1, int(TRAINING * 60 * MINUTES * speed / len(opened.unlabelled)))
    return {"auto": chosen, "by hand": by_hand | {"epochs": epochs}}


def planned(name: str, place: Path, images: str) -> dict[str, Any]:
    """The plan of a folder, made once."""
    file = place / "plan.yaml"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(plan(FOLDERS[name], images), sort_keys=False))
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def one_run_for_both(place: Path) -> bool:
    """Whether the choice is the recipe by hand, so that one run measures both ways."""
    auto, by_hand = (
        configure("scenes", {k: v for k, v in content.items() if k != "data"}, {"precision": "32"})
        for content in planned("", place, "").values()
    )
    return auto.epochs == by_hand.epochs and not differences(auto, by_hand)


def evaluate(folder: Folder, data: Path, run: Path, seed: int, *more: str) -> float:
    """k-NN accuracy or mIoU, in percent."""
    task, *words = (word.replace("{data}", str(data)) for word in folder.evaluate)
    place = run.parent / f"{run.name}-{task}{'-'.join(more)}"
    given = ["--seed", str(seed), *more, "--out", str(place)]
    call([task, str(run), *words, *given], place.with_suffix(".log"))
    (file,) = (place / "results").glob("*.json")
    found = json.loads(file.read_text())[-1]["result"]
    return round(100 * float(found["top1" if task == "knn" else "miou"]), 2)


def measure(name: str, seed: int, data: Path, out: Path, way: str) -> list[dict[str, Any]]:
    """The rows of a way; auto's network is also evaluated as it was before training."""
    folder, place = FOLDERS[name], place_of(name, out)
    run = place / f"{way.replace(' ', '-')}-{seed}"
    recipe, log = run.with_suffix(".yaml"), run.with_suffix(".log")
    content = planned(name, place, "")[way] | {"seed": seed}
    recipe.write_text(yaml.safe_dump({k: v for k, v in content.items() if k != "data"}))
    words = ["pretrain", folder.data(data, out), "--recipe", str(recipe), "--out", str(run)]
    seconds = call([*words, "--workers", "0"], log)
    chosen = {key: content[key] for key in SHOWN if content.get(key) is not None}
    row = {"folder": name, "way": way, "seed": seed}
    numbers: dict[str, Any] = {"number": evaluate(folder, data, run, seed)}
    numbers |= {"core_minutes": round(seconds / 60, 1)}
    rows = [row | numbers | {"settings": chosen | {"lr": content["optim"]["lr"]}}]
    if way == "auto":
        flag = "--scratch" if folder.evaluate[0] == "segment" else "--random-init"
        rows.append(row | {"way": RANDOM, "number": evaluate(folder, data, run, seed, flag)})
    return rows


def place_of(name: str, out: Path) -> Path:
    return out / name.replace(" ", "-").replace(",", "")


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """The table of docs/data.md: means over seeds, and the fraction of the gain by hand."""
    lines = [
        "| folder | chosen: image size, batch, epochs | random init | chosen | by hand | fraction of the gain by hand (each seed) |",  # noqa: E501
        "|---|---|---|---|---|---|",
    ]
    for name in FOLDERS:
        mine = [row for row in rows if row["folder"] == name]
        way = {
            way: {row["seed"]: row["number"] for row in mine if row["way"] == way}
            for way in (RANDOM, "auto", "by hand")
        }
        gains = [
            [way[one][seed] - first for seed, first in way[RANDOM].items()]
            for one in ("auto", "by hand")
        ]
        each = ", ".join(f"{one / other:.2f}" for one, other in zip(*gains, strict=True))
        chosen = next(row["settings"] for row in mine if row["way"] == "auto")
        sizes = f"{chosen['image_size']} px, {chosen['batch_size']}, {chosen['epochs']}"
        means = [f"{mean(numbers.values()):.1f} %" for numbers in way.values()]
        fraction = f"{sum(gains[0]) / sum(gains[1]):.2f} ({each})"
        lines.append("| " + " | ".join([name, sizes, *means, fraction]) + " |")
    return lines


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    data, out, lock = given.data.absolute(), given.out.absolute(), Lock()
    rows = json.loads(given.file.read_text()) if given.file.exists() else []
    names = [name for name in FOLDERS if given.only in name]
    for name in names:
        planned(name, place_of(name, out), FOLDERS[name].data(data, out))

    def do(name: str, seed: int, way: str) -> None:
        found = measure(name, seed, data, out, way)
        if one_run_for_both(place_of(name, out)):
            found += [row | {"way": "by hand"} for row in found if row["way"] == "auto"]
        with lock:
            rows.extend(found)
            given.file.write_text(json.dumps(rows, indent=1) + "\n")
            print(*found, sep="\n", flush=True)

    done = {(row["folder"], row["seed"], row["way"]) for row in rows}
    todo = [
        one
        for seed in range(given.seeds)
        for one in ((name, seed, way) for name in names for way in ("auto", "by hand"))
        if one not in done and (one[2] == "auto" or not one_run_for_both(place_of(one[0], out)))
    ]
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda one: do(*one), todo))


if __name__ == "__main__":
    main()
