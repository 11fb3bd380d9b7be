"""`--save-predictions`: what segment and detect predicted, as files for other programs."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from lewel.data.dense.boxes import BoxSource
from lewel.data.dense.coco import CocoBoxes
from lewel.data.dense.voc import palette
from lewel.evaluate.detections import ImageDetections, results_of
from lewel.files import write_atomically
from lewel.tasks.evaluator import Evaluator


def start_of(evaluator: Evaluator) -> str:
    """How the weights began, for the name of a file: empty for those of the run."""
    if getattr(evaluator.config, "scratch", False):
        return "-scratch"
    return "-random-init" if evaluator.untrained else ""


def predictions_folder(evaluator: Evaluator, task: str) -> str:
    """The folder of an evaluation's predictions, in the folder of its results."""
    settings = json.dumps(evaluator.settings(), sort_keys=True)
    key = hashlib.sha256(settings.encode()).hexdigest()[:12]
    return f"predictions/{task}-{evaluator.train.name}{start_of(evaluator)}-{key}"


def write_mask(folder: Path, image: str, found: Tensor) -> None:
    """Class indices uint8 (H, W) as a palette PNG, under the image's path with the suffix .png."""
    path = folder / Path(image).with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(found.numpy())
    picture.putpalette(palette().tobytes())
    write_atomically(path, lambda aside: picture.save(aside, format="PNG"))


def write_classes(folder: Path, classes: Sequence[str]) -> None:
    """The class of each index, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{name}\n" for name in classes)
    write_atomically(folder / "classes.txt", lambda aside: aside.write_text(text, encoding="utf-8"))


def write_detections(folder: Path, detections: list[ImageDetections], val: BoxSource) -> None:
    """detections.json in COCO's results format, and ground_truth.json in that of its instances.

    Ids are those of the user's own JSON file, where there is one.
    """
    truth, found = ground_truth_of(val), results_of(detections)
    if isinstance(val, CocoBoxes):
        images, categories = val.ids()
        for one in truth["images"]:
            one["id"] = images[one["id"]]
        for one in truth["categories"]:
            one["id"] = categories[one["id"]]
        for one in (*truth["annotations"], *found):
            one["image_id"] = images[one["image_id"]]
            one["category_id"] = categories[one["category_id"]]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("detections", found), ("ground_truth", truth)):
        text = json.dumps(content)
        file = folder / f"{name}.json"
        write_atomically(file, lambda aside, text=text: aside.write_text(text, encoding="utf-8"))  # type: ignore[misc]


def ground_truth_of(val: BoxSource) -> dict[str, Any]:
    """All objects in COCO's format, with the names of their images; VOC's have `difficult`."""
    if val.rule == "coco":
        truth = val.coco_ground_truth()
    else:
        truth = {"images": [], "annotations": [], "categories": []}
        truth["categories"] = [
            {"id": number, "name": name} for number, name in enumerate(val.classes or (), 1)
        ]
        for index in range(len(val)):
            height, width = val.read(index).shape[1:]
            truth["images"].append({"id": index, "height": height, "width": width})
            objects = val.objects(index)
            rows = zip(objects.boxes, objects.classes, objects.difficult, strict=True)
            for box, number, hard in rows:
                left, top, right, bottom = (float(edge) for edge in box)
                bbox = [left, top, right - left, bottom - top]
                shape = {"bbox": bbox, "area": bbox[2] * bbox[3], "iscrowd": 0}
                about = {"id": len(truth["annotations"]) + 1, "image_id": index}
                kind = {"category_id": int(number), "difficult": int(hard)}
                truth["annotations"].append({**about, **kind, **shape})
    for one in truth["images"]:
        one["file_name"] = val.describe(one["id"])
    return truth
