"""Recipes called small end within ten minutes with every small backbone that ships."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from lewel.config.evaluate import DenseConfig, DetectConfig, SegmentConfig
from lewel.config.recipes import list_recipes, read_recipe
from lewel.nn.backbone import build_resnet
from lewel.tasks import dense_dry_run, detect, segment
from lewel.tasks.evaluator import Evaluator
from lewel.train.devices import open_fabric, placement
from tests.data.dense.mask_layouts import make_voc

MINUTES = 10
BACKBONES = [("scenes", "small", 8), ("cifar", "small", 16), ("tinyimagenet", "medium", 16)]
RECIPES = [name for name in list_recipes("eval") if name.endswith("_small")]
VALIDATION = {"voc": 1449, "coco": 50}  # images; scenes have their own


def test_the_small_backbones_that_ship_are_known() -> None:
    made = {
        (name.partition("_")[0], recipe["stem"], recipe["width"])
        for name in list_recipes("pretrain")
        if (recipe := read_recipe(name, "pretrain"))["backbone"] == "resnet10"
    }
    assert made == set(BACKBONES) and len(RECIPES) == 5


def make_data(root: Path, recipe: str) -> str:
    """Images of the size of the recipe's data set."""
    if "voc" not in recipe and "coco" not in recipe:
        return "scenes"
    draw = np.random.default_rng(0)
    height, width = (192, 256) if "voc" in recipe else (427, 640)
    names = [f"i{number:02d}" for number in range(20)]
    if "voc" in recipe:
        root = make_voc(root / "VOC2012", {"train": names[:16], "val": names[16:]})
        (root / "ImageSets" / "Main").mkdir()
        for split, own in (("train", names[:16]), ("val", names[16:])):
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(own))
    box = [width // 4, height // 4, width // 2, height // 2]
    x, y, w, h = box
    corners = [[x, y, x + w, y, x + w, y + h, x, y + h]]
    (root / "Annotations").mkdir(parents=True)
    (root / "annotations").mkdir()
    for name in names:
        pixels = Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8))
        folder = root / ("JPEGImages" if "voc" in recipe else "train2017")
        folder.mkdir(exist_ok=True)
        pixels.save(folder / f"{name}.jpg")
        if "voc" in recipe:
            Image.new("P", (width, height), 1).save(root / "SegmentationClass" / f"{name}.png")
        bounds = f"<xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax>"
        about = f"<object><name>cat</name><bndbox>{bounds}</bndbox></object>"
        (root / "Annotations" / f"{name}.xml").write_text(f"<annotation>{about}</annotation>")
    if "coco" in recipe:
        (root / "Annotations").rename(root / "unused")
        shape = {"category_id": 1, "bbox": box, "area": w * h, "iscrowd": 0}
        content = {
            "images": [
                {"id": n, "file_name": f"{name}.jpg", "height": height, "width": width}
                for n, name in enumerate(names)
            ],
            "annotations": [
                {"id": 7 * n + m + 1, "image_id": n, "segmentation": corners, **shape}
                for n in range(len(names))
                for m in range(7)
            ],
            "categories": [{"id": 1, "name": "cat"}],
        }
        for split in ("train2017", "val2017"):
            file = root / "annotations" / f"instances_{split}.json"
            file.write_text(json.dumps(content))
        (root / "val2017").symlink_to(root / "train2017")
    return str(root)


@pytest.mark.slow  # real steps of every recipe with every backbone
@pytest.mark.parametrize(("name", "stem", "width"), BACKBONES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_small_recipe_ends_within_minutes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    name: str,
    stem: Any,
    width: int,
) -> None:
    weights = build_resnet("resnet10", stem=stem, width=width).state_dict()
    torch.save(weights, tmp_path / f"{name}.pth")
    data = make_data(tmp_path / "data", recipe)
    given = {**read_recipe(recipe, "eval"), "data": data, "workers": 0, "accelerator": "cpu"}
    detects = recipe.startswith("detect")
    task, prepare = (
        (detect.DETECT, detect.prepare) if detects else (segment.SEGMENT, segment.prepare)
    )
    model: type[DenseConfig] = DetectConfig if detects else SegmentConfig
    evaluator = Evaluator(str(tmp_path / f"{name}.pth"), model(**given), tmp_path, task.opens)
    fabric = open_fabric(placement(1, 1), "cpu", "32", False)
    run = task.open(fabric, evaluator, placement(1, 1), Console(quiet=True))
    prepared = prepare(run)
    monkeypatch.setattr(time, "monotonic", time.process_time)  # other programs do not count
    step = dense_dry_run.step_seconds(run, prepared)
    prepared.model.eval()
    image = dense_dry_run.median_seconds(prepared.predict, 3)
    images = next((many for kind, many in VALIDATION.items() if kind in recipe), 500)
    steps = prepared.plan.steps + prepared.precise_bn / 3
    assert (step * steps + image * images) / 60 < MINUTES, (step, image)
