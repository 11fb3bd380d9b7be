"""Data that is not what the user meant: splits, classes, labels, results of other data."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lewel.nn.backbone import build_resnet
from tests.hostile.case import Case, bring, case
from tests.hostile.foreign_file_cases import twice
from tests.hostile.world import (
    DETECTED,
    EVALUATED,
    LEWEL,
    SEGMENTED,
    TRAINED,
    labelled,
    photos,
)

KNN = f"knn {{run}} --data given --out new {EVALUATED}"
EVALUATIONS = (
    KNN,
    f"linear {{run}} --data given --out new {TRAINED}",
    f"finetune {{run}} --data given --out new --labels 50% {TRAINED}",
)
SPLIT_NAMES = (
    ("training", "validation"),
    ("train2017", "val2017"),
    ("seg_train", "seg_test"),
    ("cat/train", "cat/val"),
)
TRAIN = f"pretrain given --out new {LEWEL} --epochs 1"


def splits(train: tuple[str, ...], val: tuple[str, ...]) -> Callable[[Path], None]:
    def prepare(place: Path) -> None:
        labelled(place / "given" / "train", 16, train)
        labelled(place / "given" / "val", 16, val)

    return prepare


def _empty_val(place: Path) -> None:
    labelled(place / "given" / "train", 16)
    (place / "given" / "val").mkdir()


def _flat_val(place: Path) -> None:
    labelled(place / "given" / "train", 16)
    photos(place / "given" / "val", 16)


def _val_of_text(place: Path) -> None:
    labelled(place / "given" / "train", 16)
    (place / "given" / "val" / "cat").mkdir(parents=True)
    (place / "given" / "val" / "cat" / "readme.txt").write_text("no image")


def _val_is_train(place: Path) -> None:
    labelled(place / "given" / "train", 16)
    (place / "given" / "val").symlink_to("train")


def _val_of_links(place: Path) -> None:
    labelled(place / "given" / "train", 16)
    for path in list((place / "given" / "train").rglob("*.jpg")):
        link = place / "given" / "val" / path.parent.name / f"linked-{path.name}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)


def _val_of_copies(place: Path) -> None:
    labelled(place / "given" / "train", 16)
    shutil.copytree(place / "given" / "train", place / "given" / "val")


def _named(place: Path, one: str, other: str) -> None:
    labelled(place / "given" / one, 16)
    labelled(place / "given" / other, 16)


def _few(place: Path) -> None:
    labelled(place / "given", 12)


def _empty_class(place: Path) -> None:
    labelled(place / "given", 20)
    (place / "given" / "owl").mkdir()


def _conflicting_csv(place: Path) -> None:
    bring(place, "plain")
    rows = ["path,label"] + [f"plain/{n:03d}.jpg,{'ab'[n % 2]}" for n in range(24)]
    (place / "given").with_suffix(".csv").write_text("\n".join([*rows, "plain/000.jpg,b"]))


def csv(text: str) -> Callable[[Path], None]:
    def prepare(place: Path) -> None:
        bring(place, "plain")
        (place / "given.csv").write_text(text)

    return prepare


def _changed(
    change: Callable[[dict[str, list[dict[str, object]]]], None],
) -> Callable[[Path], None]:
    """A prepare that changes COCO's JSON of the training set."""

    def prepare(place: Path) -> None:
        root = bring(place, "coco")
        file = root / "annotations" / "instances_train2017.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    return prepare


COCO = {
    "a box of nan": lambda c: c["annotations"][0].update(bbox=[1, float("nan"), 5, 5]),
    "a box of inf": lambda c: c["annotations"][0].update(bbox=[1, 1, float("inf"), 5]),
    "a box of three numbers": lambda c: c["annotations"][0].update(bbox=[1, 1, 5]),
    "a box of words": lambda c: c["annotations"][0].update(bbox=["1", "1", "5", "5"]),
    "an image out of the folder": lambda c: c["images"][0].update(file_name="../../plain/000.jpg"),
    "an absolute path": lambda c: c["images"][0].update(file_name="/etc/hostname"),
    "a width of nan": lambda c: c["images"][0].update(width=float("nan")),
    "two images of one id": lambda c: c["images"][0].update(id=c["images"][1]["id"]),
    "two classes of one id": lambda c: c["categories"][0].update(id=2),
    "two classes of one name": lambda c: c["categories"][0].update(name="square"),
    "an unknown class": lambda c: c["annotations"][0].update(category_id=99),
    "an unknown image": lambda c: c["annotations"][0].update(image_id=99),
    "no images": lambda c: c.update(images=[]),
    "no classes": lambda c: c.update(categories=[]),
    "a missing image": lambda c: c["images"][0].update(file_name="none.jpg"),
    "a list of numbers": lambda c: c.update(annotations=[1, 2]),
    "a class that is a list": lambda c: c["categories"][0].update(name=["a"]),
}


def _voc_out(place: Path) -> None:
    root = bring(place, "voc")
    bring(place, "plain")
    for kind in ("Main", "Segmentation"):
        file = root / "ImageSets" / kind / "train.txt"
        file.write_text(file.read_text() + "../../plain/000\n")


def _voc_box(text: str) -> Callable[[Path], None]:
    def prepare(place: Path) -> None:
        file = next((bring(place, "voc") / "Annotations").glob("*0.xml"))
        file.write_text(file.read_text().replace("<xmin>16</xmin>", f"<xmin>{text}</xmin>"))

    return prepare


def _other_masks(place: Path) -> None:
    """Evaluate once, then change the masks' content but not their sizes in bytes."""
    root = bring(place, "masks")
    for path in (root / "masks").rglob("*.png"):
        _as_bmp(path, None)
    twice(f"segment {{run}} --data masks --out new {SEGMENTED}")(place)
    for path in (root / "masks").rglob("*.bmp"):
        _as_bmp(path, 1)


def _as_bmp(path: Path, value: int | None) -> None:
    pixels = np.asarray(Image.open(path))
    pixels = pixels.copy() if value is None else np.where(pixels == 0, value, 0).astype(np.uint8)
    path.unlink()
    Image.fromarray(pixels).save(path.with_suffix(".bmp"))


def _other_network(place: Path) -> None:
    bring(place, "photos")
    twice(f"knn timm/test_resnet --data photos --out new --random-init --seed 0 {EVALUATED}")(place)


def not_cached(place: Path, said: str) -> str | None:
    return "the result of another evaluation was given" if "cached in" in said else None


def _other_weights(place: Path) -> None:
    bring(place, "photos")
    for name, seed in (("one", 0), ("two", 1)):
        torch.manual_seed(seed)
        torch.save(
            build_resnet("resnet10", stem="medium", width=8).state_dict(), place / f"{name}.pth"
        )
    twice(f"knn one.pth --data photos --out new {EVALUATED}")(place)


def cases() -> list[Case]:
    found = []
    for why, prepare in {
        "other classes in val": splits(("cat", "dog"), ("owl", "fox")),
        "a class more in val": splits(("cat", "dog"), ("cat", "dog", "owl")),
        "a class less in val": splits(("cat", "dog", "owl"), ("cat", "dog")),
        "val is a link to train": _val_is_train,
        "a val of links to train's images": _val_of_links,
        "a val of copies of train's images": _val_of_copies,
        "train and Train": lambda place: _named(place, "train", "Train"),
        **{
            f"splits called {one} and {other}": partial(_named, one=one, other=other)
            for one, other in SPLIT_NAMES
        },
    }.items():
        found += [case("refused", line, why, prepare=prepare) for line in EVALUATIONS]
    for why, prepare in {
        "an empty val": _empty_val,
        "a val without classes": _flat_val,
        "a val of texts": _val_of_text,
    }.items():
        found += [case("warns", line, why, prepare=prepare, says=r"val\b") for line in EVALUATIONS]
    found += [
        case("runs", TRAIN, "an empty val, for pre-training", prepare=_empty_val),
        case(
            "warns",
            TRAIN,
            "other classes in val, for pre-training",
            says="different class",
            prepare=splits(("cat", "dog"), ("owl", "fox")),
        ),
        *(
            case(
                "warns",
                line,
                "fewer than 30 validation images",
                prepare=_few,
                says="fewer than 30|only 2 images|2 images are few|too few",
            )
            for line in EVALUATIONS
        ),
        case("warns", KNN, "an empty class folder", prepare=_empty_class, says="owl"),
        case(
            "refused",
            KNN.replace("given", "given.csv"),
            "one image with two labels",
            prepare=_conflicting_csv,
        ),
        case(
            "refused",
            KNN.replace("given", "given.csv"),
            "a CSV without a header",
            prepare=csv("plain/000.jpg,a\n"),
        ),
        case(
            "refused",
            KNN.replace("given", "given.csv"),
            "a CSV of a header",
            prepare=csv("path,label\n"),
        ),
        *(
            case("refused", line.replace("given", "given.csv"), why, prepare=csv(text))
            for line in EVALUATIONS
            for why, text in {
                "two columns of labels": "path,label,label\nplain/000.jpg,a,b\n",
                "labels of two spellings": "path,label\nplain/000.jpg,a\nplain/001.jpg,A\n",
                "a missing value for a label": "path,label\nplain/000.jpg,a\nplain/001.jpg,nan\n",
            }.items()
        ),
        case(
            "refused",
            KNN.replace("given", "given.csv"),
            "a CSV with an empty label",
            prepare=csv("path,label\nplain/000.jpg,\nplain/001.jpg,a\n"),
        ),
        case(
            "refused",
            TRAIN.replace("given", "given.csv"),
            "a CSV of missing images",
            prepare=csv("path,label\nnone.jpg,a\n"),
        ),
        case(
            "refused",
            ["pretrain", "", "--out", "new", *LEWEL.split()],
            "an unset variable",
            prepare=_few,
        ),
        case("refused", ["pretrain", " ", "--out", "new", *LEWEL.split()], "a space"),
    ]
    detect = f"detect {{run}} --data {{coco}} --out new {DETECTED}"
    found += [
        case("refused", detect, why, prepare=_changed(change)) for why, change in COCO.items()
    ]
    found.append(
        case(
            "warns",
            detect,
            "an image of width 0",
            prepare=_changed(lambda c: c["images"][0].update(width=0)),
            says="without area|width",
        )
    )
    voc_detect, voc_segment = (
        detect.replace("coco", "voc"),
        (f"segment {{run}} --data {{voc}} --out new {SEGMENTED}"),
    )
    found += [
        case("refused", voc_detect, "a name that leads out of VOC", prepare=_voc_out),
        case("refused", voc_segment, "a name that leads out of VOC", prepare=_voc_out),
        *(
            case("refused", voc_detect, f"a corner of {text}", prepare=_voc_box(text))
            for text in ("nan", "", "abc")
        ),
        case("warns", voc_detect, "a corner of inf", prepare=_voc_box("inf"), says="left out"),
        case("clear", voc_detect, "a corner of -1e9", prepare=_voc_box("-1e9")),
        case(
            "runs",
            f"segment {{run}} --data masks --out new {SEGMENTED}",
            "masks that have changed",
            prepare=_other_masks,
            check=not_cached,
        ),
        case(
            "runs",
            f"knn timm/test_resnet --data {{photos}} --out new --random-init --seed 1 {EVALUATED}",
            "another random network",
            prepare=_other_network,
            check=not_cached,
        ),
        case(
            "runs",
            f"knn timm/test_efficientnet --data {{photos}} --out new --random-init {EVALUATED}",
            "another random network",
            prepare=_other_network,
            check=not_cached,
        ),
        case(
            "runs",
            f"knn two.pth --data {{photos}} --out new {EVALUATED}",
            "other weights",
            prepare=_other_weights,
            check=not_cached,
        ),
    ]
    return found
