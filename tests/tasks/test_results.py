"""`lewel results`: the paper's number is shown only where everything agrees."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.numpy import save_file

from lewel.config.configure import configure
from lewel.config.evaluate import EvaluateConfig
from lewel.config.methods import as_recipe
from lewel.config.settings import write_yaml
from lewel.errors import RunError
from lewel.evaluate.results import Results, fingerprint
from lewel.nn.backbone import MEAN, STD
from lewel.tasks.paper import CONFIGS, NO_PROTOCOL, NOT_STORED
from lewel.tasks.report import report
from lewel.tasks.results import COLUMNS, numbers_of, result_rows, results_table
from lewel.tasks.run_reader import read_run

WNIDS = [f"n{number:08}" for number in range(1000)]
IMAGENET = {"data": "imagenet", "images": 1_281_167, "classes": WNIDS}
IMAGENET100 = {"data": "imagenet", "images": 126_689, "classes": WNIDS[:100]}
NETWORK: dict[str, Any] = {
    "backbone": "resnet50",
    "stem": "imagenet",
    "width": 64,
    "image_size": 224,
    "mean": MEAN,
    "std": STD,
}

# Settings and results as the commands store them.
SHARED: dict[str, Any] = {
    "limit": None,
    "classes": None,
    "image_size": 224,
    "untrained": False,
    "seed": 0,
    "precision": "32",
    "train": "e759c6c5fb66e72a",
    "val": "66120a8a3fd7198c",
}
LINEAR_B = {
    **SHARED,
    "data": "imagenet",
    "batch_size": 256,
    "epochs": 50,
    "optimiser": "sgd",
    "lr": 0.4,
    "lr_batch_size": 256,
    "weight_decay": 0.0,
    "schedule": "steps",
    "crop_scale": [0.08, 1.0],
    "fast": False,
}
LINEAR_M = LINEAR_B | {
    "batch_size": 4096,
    "epochs": 90,
    "optimiser": "lars",
    "lr": 3.2,
    "lr_batch_size": 4096,
    "schedule": "cosine",
}
FINETUNE_1 = {
    **{key: value for key, value in LINEAR_B.items() if key != "fast"},
    "lr": 1.0,
    "backbone_lr": 0.0001,
    "labels": "lists/1percent.txt",
    "scratch": False,
}
FINETUNE_10 = FINETUNE_1 | {"lr": 0.1, "backbone_lr": 0.01, "labels": "10percent.txt"}
SEGMENT = {
    **SHARED,
    "data": "VOCdevkit/VOC2012",
    "batch_size": 16,
    "lr": "0.01,0.02,0.04",
    "split": None,
    "iterations": 20_000,
    "crop": 512,
    "short_side": 512,
    "lr_batch_size": 16,
    "min_lr": 0.0001,
    "power": 0.9,
    "weight_decay": 0.0005,
    "channels": 512,
    "auxiliary_channels": 256,
    "sync_batch_norm": True,
    "scratch": False,
}
DETECT_VOC = {
    **SHARED,
    "data": "VOCdevkit",
    "batch_size": 16,
    "lr": "0.02",
    "arch": "c4",
    "masks": False,
    "train_split": None,
    "val_split": None,
    "val_limit": None,
    "iterations": 24_000,
    "lr_batch_size": 16,
    "warmup": 100,
    "decays": [0.75, 0.9166667],
    "weight_decay": 0.0001,
    "short_sides": list(range(480, 801, 32)),
    "test_side": 800,
    "long_side": 1333,
    "rois": 512,
    "anchors": 256,
    "proposals": None,
    "width": 256,
    "hidden": 1024,
    "precise_bn": 200,
}
DETECT_COCO = DETECT_VOC | {
    "data": "coco",
    "masks": True,
    "iterations": 90_000,
    "warmup": 1000,
    "decays": [0.6666667, 0.8888889],
    "short_sides": list(range(640, 801, 32)),
}
CLASSIFIED = {
    "backbone": "resnet50",
    "data": "imagenet",
    "images": 50_000,
    "top1": 0.712,
    "top5": 0.9,
    "interval": [0.708, 0.716],
    "classes": WNIDS,
}
CLASSIFIED_100 = CLASSIFIED | {"images": 5_000, "classes": WNIDS[:100]}
SEGMENTED = {
    "backbone": "resnet50",
    "data": "VOC2012-train_aug",
    "images": 1_449,
    "training_images": 10_582,
    "miou": 0.671,
    "interval": [0.66, 0.68],
    "lr": 0.01,
}
PRECISION = {"AP": 0.5, "AP50": 0.8, "AP75": 0.6}
IN_VOC = {
    "backbone": "resnet50",
    "data": "voc0712",
    "images": 4_952,
    "training_images": 16_551,
    "rule": "VOC 11-point",
    **PRECISION,
}
IN_COCO = {
    **IN_VOC,
    "data": "coco",
    "images": 5_000,
    "training_images": 117_266,
    "rule": "COCO",
    "mask": PRECISION,
}


def make_run(
    folder: Path, recipe: str, card: dict[str, Any], given: dict[str, Any] | None = None
) -> str:
    """A run folder as if a recipe had been trained; the fingerprint of its weights."""
    overrides = {"seed": 3, "workers": 8} | (given or {})
    config = configure(str(card.get("folder", card["data"])), recipe, overrides)
    folder.mkdir(parents=True, exist_ok=True)
    write_yaml(as_recipe(config), folder / "config.yaml")
    about = {"method": config.method, "image_size": config.image_size, "epochs": config.epochs}
    write_card(folder, about | card)
    return fingerprint(folder / "backbone.safetensors")


def write_card(folder: Path, card: dict[str, Any]) -> None:
    weights, about = {"w": np.zeros(1, np.float32)}, json.dumps(NETWORK | card)
    save_file(weights, folder / "backbone.safetensors", metadata={"lewel": about})


def shown(folder: Path, task: str, settings: dict[str, Any], result: dict[str, Any]) -> str:
    """What the column `paper` shows of one result."""
    weights = fingerprint(folder / "backbone.safetensors")
    Results(folder).keep(task, {"weights": weights, **settings}, {"task": task, **result})
    rows = [row for row in result_rows(folder, numbers_of(folder)) if row.result["task"] == task]
    return rows[-1].cells[COLUMNS.index("paper")]


B200, M200 = "imagenet_lewel_b_200ep", "imagenet_lewel_m_200ep"


@pytest.mark.parametrize(
    ("recipe", "task", "settings", "result", "expected"),
    [
        (B200, "linear", LINEAR_B, CLASSIFIED, "top-1 72.8, top-5 91.0 (Tables 1 and 8)"),
        *(
            (f"imagenet_{name}ep", "linear", LINEAR_M, CLASSIFIED,
                f"{stated}), cited from its own paper")
            for name, stated in (
                ("inst_disc_200", "top-1 56.5 (Table 1"),
                ("pcl_200", "top-1 67.6 (Table 1"),
                ("densecl_200", "top-1 63.6, top-5 85.8 (Table 8"),
                ("resim_fpn_200", "top-1 66.1 (Table 8"),
                ("pixpro_400", "top-1 60.2, top-5 83.0 (Table 8"),
            )
        ),
        ("imagenet_simsiam_200ep", "linear", LINEAR_M, CLASSIFIED, ""),  # a dagger
        ("imagenet_lewel_b_100ep", "linear", LINEAR_B, CLASSIFIED,
            "top-1 71.9, top-5 90.5 (Table 1)"),
        ("imagenet_lewel_b_400ep", "linear", LINEAR_B, CLASSIFIED,
            "top-1 73.8, top-5 91.7 (Tables 1 and 8)"),
        ("imagenet_byol_200ep", "linear", LINEAR_B, CLASSIFIED,
            "top-1 71.9, top-5 90.4 (Table 1)"),
        ("imagenet_moco_v2_100ep", "linear", LINEAR_M, CLASSIFIED,
            "top-1 64.5, top-5 86.1 (Table 1)"),
        (M200, "linear", LINEAR_M, CLASSIFIED,
            "top-1 68.4, top-5 88.6 (Table 1); top-1 68.1, top-5 88.6 (Table 8)"),
        (B200, "finetune", FINETUNE_1, {**CLASSIFIED, "labelled": 12_811},
            "top-1 56.1, top-5 79.9 (Table 2)"),
        (B200, "finetune", FINETUNE_10, {**CLASSIFIED, "labelled": 128_116},
            "top-1 68.7, top-5 88.9 (Table 2)"),
        (B200, "segment", SEGMENT, SEGMENTED, "mIoU 67.8 (Table 3)"),
        (B200, "detect", DETECT_VOC, IN_VOC, "AP 56.5, AP50 82.6, AP75 63.7 (Table 3)"),
        (B200, "detect", DETECT_COCO, IN_COCO,
            "AP 38.5, AP50 58.9, AP75 41.2, mask AP 33.7, mask AP50 55.5, mask AP75 35.5 "
            "(Table 4)"),
        (B200, "detect", DETECT_COCO | {"arch": "fpn", "lr": "0.04"}, IN_COCO,
            "AP 41.3, AP50 61.2, AP75 45.4, mask AP 37.4, mask AP50 58.3, mask AP75 40.3 "
            "(Tables 4 and 8)"),
        (B200, "detect", DETECT_COCO | {"arch": "fpn", "iterations": 180_000}, IN_COCO,
            "AP 42.2, AP50 62.3, AP75 46.1, mask AP 38.2, mask AP50 59.6, mask AP75 41.1 "
            "(Table 8)"),
    ],
)  # fmt: skip
def test_the_papers_number_is_shown_for_its_own_protocol(
    tmp_path: Path,
    recipe: str,
    task: str,
    settings: dict[str, Any],
    result: dict[str, Any],
    expected: str,
) -> None:
    make_run(tmp_path, recipe, IMAGENET)
    assert shown(tmp_path, task, settings, result) == expected


def test_settings_that_version_0_1_stored_for_other_methods_do_not_matter(tmp_path: Path) -> None:
    recipe = "imagenet_moco_v2_100ep"
    make_run(tmp_path, recipe, IMAGENET)
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    config["head"]["aligned_dim"] = 256  # MoCo v2 has no aligned embeddings
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert shown(tmp_path, "linear", LINEAR_M, CLASSIFIED) == "top-1 64.5, top-5 86.1 (Table 1)"


@pytest.mark.parametrize(
    ("task", "settings", "result"),
    [
        ("linear", LINEAR_B | {"epochs": 1, "limit": 1000}, CLASSIFIED),
        ("linear", LINEAR_B | {"limit": 1000}, CLASSIFIED),
        ("linear", LINEAR_B | {"epochs": 1}, CLASSIFIED),
        ("linear", LINEAR_B | {"lr": 0.2}, CLASSIFIED),
        ("linear", LINEAR_B | {"batch_size": 512}, CLASSIFIED),
        ("linear", LINEAR_B | {"image_size": 160}, CLASSIFIED),
        ("linear", LINEAR_B | {"crop_scale": [0.2, 1.0]}, CLASSIFIED),
        ("linear", LINEAR_B | {"weights": "untrained", "untrained": True}, CLASSIFIED),
        ("linear", LINEAR_B | {"weights": "0123456789abcdef"}, CLASSIFIED),  # of another file
        ("linear", LINEAR_M, CLASSIFIED),  # the protocol of LEWEL_M
        ("linear", {"data": "imagenet"}, CLASSIFIED),
        ("linear", LINEAR_B | {"data": "food101"}, CLASSIFIED | {"data": "food101"}),
        ("linear", LINEAR_B | {"classes": "100.txt"}, CLASSIFIED_100),
        ("linear", LINEAR_B, CLASSIFIED | {"images": 10_000}),
        ("linear", LINEAR_B, CLASSIFIED | {"data": "imagenet-a-tenth"}),
        ("linear_fast", LINEAR_B | {"fast": True}, CLASSIFIED),
        ("linear_fast", LINEAR_B, CLASSIFIED),
        ("knn", SHARED | {"data": "imagenet", "neighbours": [20]}, CLASSIFIED | {"k": 20}),
        ("finetune", FINETUNE_1 | {"labels": "1%"}, CLASSIFIED | {"labelled": 12_811}),
        ("finetune", FINETUNE_1, CLASSIFIED | {"labelled": 13_000}),
        ("finetune", FINETUNE_1, CLASSIFIED | {"labelled": 128_116}),
        ("finetune", FINETUNE_1 | {"backbone_lr": 0.01}, CLASSIFIED | {"labelled": 12_811}),
        ("segment", SEGMENT | {"iterations": 10}, SEGMENTED),
        ("segment", SEGMENT | {"crop": 256}, SEGMENTED),
        ("segment", SEGMENT | {"lr": "0.03"}, SEGMENTED),  # not among the searched rates
        ("detect", DETECT_VOC | {"lr": "0.02,1"}, IN_VOC),
        ("segment", SEGMENT, SEGMENTED | {"data": "VOC2012-train", "training_images": 1_464}),
        ("segment", SEGMENT, SEGMENTED | {"images": 100}),
        ("detect", DETECT_VOC | {"iterations": 10}, IN_VOC),
        ("detect", DETECT_VOC | {"val_limit": 100}, IN_VOC | {"images": 100}),
        ("detect", DETECT_VOC, IN_VOC | {"data": "voc07", "training_images": 5_011}),
        ("detect", DETECT_COCO | {"masks": False}, IN_COCO),
        ("detect", DETECT_COCO | {"rois": 64}, IN_COCO),
        ("detect", DETECT_COCO | {"classes": "animals.txt"}, IN_COCO),
    ],
)
def test_another_evaluation_has_no_number(
    tmp_path: Path, task: str, settings: dict[str, Any], result: dict[str, Any]
) -> None:
    make_run(tmp_path, B200, IMAGENET)
    assert numbers_of(tmp_path)
    assert shown(tmp_path, task, settings, result) == ""


@pytest.mark.parametrize(
    ("card", "given"),
    [
        ({"data": "photos", "images": 1000}, {}),
        (IMAGENET | {"images": 1000}, {"limit": 1000}),
        (IMAGENET | {"images": 1_281_000}, {}),
        (IMAGENET100, {"classes": "100.txt"}),
        (IMAGENET | {"epochs": 120.5}, {}),  # before its end
        (IMAGENET, {"epochs": 199}),
        (IMAGENET, {"batch_size": 256}),
        (IMAGENET, {"precision": "32"}),
        (IMAGENET, {"backbone": "resnet18"}),
        (IMAGENET, {"init": "other.pth"}),
        (IMAGENET, {"head": {"groups": 8}}),
        (IMAGENET, {"views": {"flip": 0.0}}),
    ],
)
def test_another_pre_training_has_no_number(
    tmp_path: Path, card: dict[str, Any], given: dict[str, Any]
) -> None:
    make_run(tmp_path, B200, card, given)
    assert numbers_of(tmp_path) == {}
    assert shown(tmp_path, "linear", LINEAR_B, CLASSIFIED) == ""
    assert shown(tmp_path, "segment", SEGMENT, SEGMENTED) == ""


def test_imagenet_in_a_folder_is_recognised_by_its_images(tmp_path: Path) -> None:
    make_run(tmp_path, B200, IMAGENET | {"data": "ilsvrc", "folder": "/data/ilsvrc"})
    expected = "top-1 72.8, top-5 91.0 (Tables 1 and 8)"
    own = LINEAR_B | {"data": "/data/ilsvrc"}
    assert shown(tmp_path, "linear", own, CLASSIFIED | {"data": "ilsvrc"}) == expected
    assert shown(tmp_path, "linear", LINEAR_B, CLASSIFIED) == expected
    assert shown(tmp_path, "linear", own, CLASSIFIED | {"data": "tenth"}) == ""


def test_imagenet_without_labels_is_evaluated_by_its_name(tmp_path: Path) -> None:
    make_run(tmp_path, B200, {"data": "shards", "images": 1_281_167, "classes": None})
    expected = "top-1 72.8, top-5 91.0 (Tables 1 and 8)"
    assert shown(tmp_path, "linear", LINEAR_B, CLASSIFIED) == expected
    assert shown(tmp_path, "linear", LINEAR_B, CLASSIFIED | {"classes": WNIDS[:900]}) == ""


@pytest.mark.parametrize("folder", [None, "/data/in100"])
def test_imagenet_100_by_a_class_list_or_in_a_folder(tmp_path: Path, folder: str | None) -> None:
    card = IMAGENET100 if folder is None else IMAGENET100 | {"data": "in100", "folder": folder}
    given = {"classes": "100.txt"} if folder is None else {}
    make_run(tmp_path, "imagenet100_lewel_m_240ep", card, given)
    settings = LINEAR_M | {"classes": given.get("classes"), "data": folder or "imagenet"}
    result = CLASSIFIED_100 | {"data": card["data"]}
    assert shown(tmp_path, "linear", settings, result) == "top-1 82.1 (Tables 5 and 6)"
    assert shown(tmp_path, "segment", SEGMENT, SEGMENTED) == "mIoU 63.4 (Tables 5 and 6)"
    # On all of ImageNet, and on 100 other classes.
    assert shown(tmp_path, "linear", LINEAR_M, CLASSIFIED) == ""
    others = result | {"classes": WNIDS[100:200]}
    assert shown(tmp_path, "linear", settings, others) == ""


def test_an_imagenet_100_recipe_on_other_images_has_no_number(tmp_path: Path) -> None:
    for number, images in enumerate((1_281_167, 128_000)):
        folder = tmp_path / str(number)
        make_run(folder, "imagenet100_lewel_b_240ep", IMAGENET100 | {"images": images})
        assert numbers_of(folder) == {}


@pytest.mark.parametrize(
    ("recipe", "given", "expected"),
    [
        ("imagenet100_lewel_m_240ep", {"head": {"maps": "separate"}}, "top-1 81.0 (Table 5)"),
        ("imagenet100_lewel_m_240ep", {"head": {"maps": "separate", "aligned_weight": 1.0}},
            "top-1 80.0 (Table 5)"),
        ("imagenet100_lewel_m_240ep", {"head": {"maps": "random"}}, "top-1 79.8 (Table 6)"),
        ("imagenet100_moco_v2_240ep", {}, "top-1 79.5 (Tables 5 and 6)"),
        ("imagenet100_moco_v2_240ep", {"head": {"dim": 256}}, "top-1 79.8 (Table 6)"),
        ("imagenet100_lewel_b_240ep", {"head": {"groups": 16}}, "top-1 82.9 (Table 7)"),
        ("imagenet100_lewel_m_240ep", {"contrast": {"queue": None}}, ""),
    ],
)  # fmt: skip
def test_ablations_are_recipes_with_other_settings(
    tmp_path: Path, recipe: str, given: dict[str, Any], expected: str
) -> None:
    make_run(tmp_path, recipe, IMAGENET100, {"classes": "100.txt", **given})
    protocol = LINEAR_B if "lewel_b" in recipe else LINEAR_M
    assert shown(tmp_path, "linear", protocol, CLASSIFIED_100) == expected


def test_a_number_that_the_paper_cites_is_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path, "imagenet_byol_400ep", IMAGENET)
    assert numbers_of(tmp_path) == {}


def test_results_and_report_show_the_same(tmp_path: Path) -> None:
    make_run(tmp_path, "imagenet_lewel_b_100ep", IMAGENET)
    expected = "top-1 71.9, top-5 90.5 (Table 1)"
    assert shown(tmp_path, "linear", LINEAR_B, CLASSIFIED) == expected
    assert shown(tmp_path, "segment", SEGMENT | {"iterations": 10}, SEGMENTED) == ""
    linear, dense = read_run(tmp_path, lambda run: None).results
    assert linear.cells["paper"] == expected and dense.cells["paper"] == ""
    assert linear.cells["result"] == "top-1 71.2%" and linear.cells["also"] == "top-5 90.0%"
    assert (dense.cells["result"], dense.cells["95 %"]) == ("mIoU 67.1%", "66.0-68.0")
    page = report([tmp_path], None, lambda run: None).read_text(encoding="utf-8")
    assert f'<td class="main">top-1 71.2%</td><td>{expected}</td>' in page
    table = StringIO()
    Console(file=table, width=300).print(results_table([tmp_path]))
    assert expected in table.getvalue() and "mIoU 67.1%" in table.getvalue()


def test_rows_name_the_weights_and_the_task(tmp_path: Path) -> None:
    make_run(tmp_path, B200, IMAGENET)
    baseline = {"weights": "untrained"}
    for task, settings, result in (
        ("linear", LINEAR_B | baseline, CLASSIFIED),
        ("finetune", FINETUNE_1 | baseline | {"labels": "100%"}, CLASSIFIED),
        ("finetune", FINETUNE_1, CLASSIFIED),
        ("detect", DETECT_COCO, IN_COCO),
    ):
        shown(tmp_path, task, settings, result)
    rows = [row.cells for row in result_rows(tmp_path, {})]
    assert [(row[1], row[3]) for row in rows] == [
        ("lewel_b", "detect c4 (90,000 steps, lr 0.02)"),
        ("supervised", "finetune 100% (50 epochs)"),
        ("lewel_b", "finetune by list (50 epochs)"),
        ("randomly initialised", "linear (50 epochs)"),
    ]
    assert all(row[-1] == "" for row in rows)


@pytest.mark.parametrize("settings", [LINEAR_B, FINETUNE_1, SEGMENT, DETECT_VOC])
def test_the_settings_of_these_tests_are_those_that_are_stored(settings: dict[str, Any]) -> None:
    kinds: list[type[EvaluateConfig]] = [
        kind
        for kind in CONFIGS.values()
        if kind.model_fields.keys() - NOT_STORED == settings.keys() - {"train", "val"}
    ]
    assert len(kinds) == 1
    assert settings.keys() >= NO_PROTOCOL & kinds[0].model_fields.keys()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({}, "lacks 'backbone'"),
        ({"top1": "x"}, "is no result"),
        ({**CLASSIFIED, "data": {}}, "is no result"),
    ],
)
def test_an_entry_without_numbers_is_damaged_in_results_and_report(
    tmp_path: Path, result: dict[str, Any], reason: str
) -> None:
    make_run(tmp_path, B200, IMAGENET)
    with pytest.raises(RunError, match=rf"knn\.json is damaged, .*\(an entry {reason}\)"):
        shown(tmp_path, "knn", {"weights": "x"}, result)
    (problem,) = read_run(tmp_path, lambda run: None).problems
    assert "knn.json is damaged" in problem
