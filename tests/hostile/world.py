"""The fixtures of the campaign, made once: tiny runs, packs, and data for every task."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lewel.cli.main import run
from lewel.nn.backbone import build_resnet
from tests.data.dense.mask_layouts import make_folder, make_voc
from tests.hostile.case import WORLD

TINY = (
    "--recipe paper --backbone resnet10 --stem medium --width 8 --image-size 32 --batch-size 8 "
    "--head.hidden 16 --optim.lr 0.2 --optim.lr-batch-size 8 --optim.warmup-epochs 0 --knn.every 0 "
    "--workers 0 --log-every 3 --accelerator cpu --head.dim 8 --seed 0"
)
LEWEL = TINY + " --head.groups 2 --method lewel_b"
RUN = f"pretrain {{world}}/plain --out {{run}} {LEWEL} --epochs 2"  # the command of `run`
EVALUATED = "--workers 0 --accelerator cpu"
TRAINED = EVALUATED + " --epochs 1 --batch-size 8"
SEGMENTED = (
    EVALUATED + " --iterations 2 --batch-size 4 --crop 32 --channels 8 --auxiliary-channels 8"
)
DETECTED = (
    EVALUATED + " --iterations 2 --batch-size 2 --short-sides 32 --test-side 32 --rois 4 "
    "--anchors 8 --width 8 --hidden 8 --warmup 1 --precise-bn 1 --proposals 20 8 20 8"
)


def picture(seed: int, width: int = 48, height: int = 40) -> Image.Image:
    """A picture of noise with a coloured square, another for each seed."""
    draws = np.random.default_rng(seed)
    pixels = draws.integers(0, 80, (height, width, 3), np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = draws.integers(100, 255, 3)
    return Image.fromarray(pixels)


def photos(folder: Path, count: int, first: int = 0) -> Path:
    """So many JPEG files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        picture(number).save(folder / f"{number:03d}.jpg")
    return folder


def labelled(folder: Path, count: int, names: tuple[str, ...] = ("cat", "dog")) -> Path:
    """Class folders with so many pictures each."""
    for place, name in enumerate(names):
        photos(folder / name, count, 1000 * place)
    return folder


def coco(root: Path, **changes: object) -> Path:
    """Six images with one box each, in both splits."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split, first in (("train2017", 0), ("val2017", 100)):
        photos(root / split, 6, first)
        numbers = range(first, first + 6)
        content = {
            "images": [
                {"id": n, "file_name": f"{n:03d}.jpg", "width": 48, "height": 40} for n in numbers
            ],
            "annotations": [
                {
                    "id": n + 1,
                    "image_id": n,
                    "category_id": 1 + n % 2,
                    "bbox": [12, 10, 12, 10],
                    "area": 120,
                    "iscrowd": 0,
                    "segmentation": [[12, 10, 24, 10, 24, 20, 12, 20]],
                }
                for n in numbers
            ],
            "categories": [{"id": 1, "name": "box"}, {"id": 2, "name": "square"}],
            **changes,
        }
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def voc(root: Path) -> Path:
    """A year of Pascal VOC with masks and boxes."""
    names = [f"2012_{number:06d}" for number in range(10)]
    make_voc(root, {"train": names[:6], "val": names[6:]})
    (root / "ImageSets" / "Main").mkdir()
    (root / "Annotations").mkdir()
    for split, mine in (("train", names[:6]), ("val", names[6:])):
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(mine) + "\n")
    for name in names:
        (root / "Annotations" / f"{name}.xml").write_text(
            "<annotation><object><name>cat</name><difficult>0</difficult><bndbox><xmin>16</xmin>"
            "<ymin>1</ymin><xmax>29</xmax><ymax>19</ymax></bndbox></object></annotation>"
        )
    return root


def make_world(folder: Path) -> None:
    """All fixtures, in folder/world; the last one tells that it is complete."""
    world = folder / WORLD
    world.mkdir(parents=True)
    os.chdir(world)
    photos(world / "plain", 24)
    labelled(world / "photos", 24)
    labelled(world / "splits" / "train", 12)
    labelled(world / "splits" / "val", 16)
    make_folder(world / "masks", {"train": 8, "val": 4})
    voc(world / "voc")
    coco(world / "coco")
    torch.manual_seed(0)
    net = build_resnet("resnet10", stem="medium", width=8)
    torch.save({"state_dict": net.state_dict()}, world / "foreign.pth")
    words = [
        RUN.replace("{world}", str(world)).replace("{run}", "run"),
        f"pretrain {world}/plain --out byol {TINY} --method byol --epochs 1",
        f"pretrain {world}/plain --out other {LEWEL.replace('--seed 0', '--seed 1')} --epochs 1",
        f"knn run --data {world}/photos {EVALUATED}",
        "import foreign.pth --out imported",
        "pack plain pack --workers 0 --shard-images 10",
        "pack photos labelled_pack --workers 0 --shard-images 20",
        "export run --to torch-export --out exported.pt2",
    ]
    for line in words:
        if run(line.split()):
            raise RuntimeError(f"lewel {line} failed")


def quietly(work: Callable[[], None], log: Path) -> Callable[[], int]:
    """A function whose output goes to a file."""

    def done() -> int:
        number = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(number, 1)
        os.dup2(number, 2)
        sys.stdout = os.fdopen(1, "w")
        work()
        return 0

    return done
