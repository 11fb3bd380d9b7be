"""Detection from the command line: training, resuming, learning rates, pictures, wrong input."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import nn

from lewel.cli.main import run
from lewel.config.evaluate import DetectConfig
from lewel.config.recipes import list_recipes, read_recipe
from lewel.errors import RunError
from lewel.interop.backbones import find_network
from lewel.tasks.detect import build_detector, make_optimizer
from lewel.tasks.results import result_rows
from lewel.train.loop import take_step
from tests.conftest import small_backbone
from tests.data.dense.test_boxes import changed, coco_file, make_coco, make_voc, voc_object
from tests.data.pack.photos import pack
from tests.running import tiny_run

SMALL = {
    "--iterations": "4",
    "--batch-size": "2",
    "--limit": "4",
    "--val-limit": "2",
    "--short-sides": "32",
    "--test-side": "32",
    "--rois": "4",
    "--anchors": "8",
    "--width": "8",
    "--hidden": "8",
    "--warmup": "1",
    "--precise-bn": "2",
    "--workers": "0",
    "--accelerator": "cpu",
    "--data": "scenes",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("detected") / "run"
    assert tiny_run(out, "--epochs", "1", "--stem", "medium", "--image-size", "32") == 0
    return out


def words(backbone: Path, out: Path, *flags: str) -> list[str]:
    small = [word for pair in SMALL.items() if pair[0] not in flags for word in pair]
    few = [] if "--proposals" in flags else ["--proposals", "20", "8", "20", "8"]
    return ["detect", str(backbone), "--out", str(out), *small, *few, *flags]


def entries(out: Path) -> list[dict[str, dict[str, object]]]:
    return json.loads((out / "results" / "detect.json").read_text())


def test_an_interrupted_detection_resumes_exactly_and_draws_its_detections(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("lewel.tasks.detect.EPOCH", 2)
    flags = ["--arch", "fpn", "--masks"]
    assert run(words(trained, tmp_path / "whole", *flags)) == 0
    said = capsys.readouterr().out
    assert "detect on scenes: AP " in said and "masks: AP " in said
    assert f"lewel results {tmp_path / 'whole'}" in said
    steps: list[int] = []

    def breaks(training: object, *rest: object) -> object:
        steps.append(training.step)
        if len(steps) == 4:
            raise RunError("the power went")
        return take_step(training, *rest)

    monkeypatch.setattr("lewel.train.loop.take_step", breaks)
    assert run(words(trained, tmp_path / "cut", *flags)) == 1
    assert run(words(trained, tmp_path / "cut", *flags)) == 0
    assert "resumed at step 2" in capsys.readouterr().out
    assert steps == [0, 1, 2, 3, 2, 3]
    curves = []
    for name in ("whole", "cut"):
        (file,) = (tmp_path / name).glob("results/learning-*/metrics.jsonl")
        curves.append([json.loads(line)["loss"] for line in file.read_text().splitlines()[1:]])
        assert not list((tmp_path / name).glob("results/learning-*/checkpoints"))
    assert len(curves[0]) == 4 and curves[0] == curves[1]
    one, two = (entries(tmp_path / name)[0]["result"] for name in ("whole", "cut"))
    timing = {"seconds", "written"}
    assert {k: v for k, v in one.items() if k not in timing} == {
        k: v for k, v in two.items() if k not in timing
    }
    assert one["rule"] == "COCO" and one["images"] == 2 and one["training_images"] == 4
    pictures = sorted((tmp_path / "whole" / "predictions").glob("detect-scenes-fpn-*.png"))
    assert len(pictures) == 2 and np.asarray(Image.open(pictures[0])).std() > 10


def test_a_dry_run_gives_the_time_and_writes_nothing(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(trained, tmp_path / "out", "--dry-run", "--arch", "fpn")) == 0
    said = capsys.readouterr().out
    assert "arch: fpn" in said and "steps: 4" in said and "validation images: 2" in said
    assert re.search(r"time: about \d+ s on 1 x cpu: [\d.e-]+ s a step", said), said
    assert not (tmp_path / "out").exists()


def recomputed(kept: Path, kind: str) -> list[float]:
    """AP, AP50 and AP75 of the stored files, by pycocotools."""
    truth = COCO(str(kept / "ground_truth.json"))
    found = truth.loadRes(str(kept / "detections.json"))
    evaluator = COCOeval(truth, found, kind)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return evaluator.stats[:3].tolist()


def test_saved_detections_give_the_same_ap(trained: Path, tmp_path: Path) -> None:
    data = make_coco(tmp_path / "coco", annotations=coco_file()["annotations"][:2])
    flags = ["--arch", "fpn", "--masks", "--iterations", "60", "--lr", "0.05", "--data", str(data)]
    flags += ["--train-split", "train2017", "--val-split", "train2017", "--save-predictions"]
    assert run(words(trained, tmp_path / "out", *flags)) == 0
    result = entries(tmp_path / "out")[0]["result"]
    kept = tmp_path / "out" / str(result["predictions"])
    rows = json.loads((kept / "detections.json").read_text())
    assert {row["image_id"] for row in rows} <= {7, 9}  # the ids of the user's file
    assert {row["category_id"] for row in rows} <= {3, 90} and result["AP50"] > 0
    boxes = [result[name] for name in ("AP", "AP50", "AP75")]
    assert recomputed(kept, "bbox") == pytest.approx(boxes, abs=1e-6)
    masks = [result["mask"][name] for name in ("AP", "AP50", "AP75")]
    (kept / "detections.json").write_text(
        json.dumps([{k: v for k, v in row.items() if k != "bbox"} for row in rows])
    )  # with both, pycocotools takes the area of the box
    assert recomputed(kept, "segm") == pytest.approx(masks, abs=1e-6)


def test_an_interrupted_evaluation_keeps_the_training(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*anything: object, **more: object) -> None:
        raise RunError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("lewel.tasks.detect.coco_ap", fails)
        assert run(words(trained, tmp_path)) == 1
    assert run(words(trained, tmp_path)) == 0
    assert "resumed at step 4" in capsys.readouterr().out


def test_each_learning_rate_is_trained_and_the_best_is_labelled(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(trained, tmp_path, "--iterations", "2", "--lr", "0.01")) == 0
    assert run(words(trained, tmp_path, "--iterations", "2", "--lr", "0.01,0.02")) == 0
    said = capsys.readouterr().out
    assert "AP by lr 0.01: " in said and "the best on the validation set" in said
    rates = [entry["settings"]["lr"] for entry in entries(tmp_path)]
    assert rates == ["0.01", "0.02", "0.01,0.02"]  # the first one was cached
    assert list(entries(tmp_path)[-1]["result"]["by_lr"]) == ["0.01", "0.02"]
    tasks = [row.cells[3] for row in result_rows(tmp_path, {})]
    assert [task.partition(", of ")[0] for task in tasks] == [
        "detect c4 (2 steps, lr 0.01",
        "detect c4 (2 steps, lr 0.02",
        "detect c4 (2 steps, lr 0.01,0.02, best of 2",
    ]
    assert run(words(trained, tmp_path, "--iterations", "2", "--lr", "0.01,0.02", "--again")) == 0
    said = capsys.readouterr().out
    lines = [line.strip() for line in said.splitlines()]
    assert "lr 0.01:" in lines and "lr 0.02:" in lines  # each is recomputed
    drawn = {file.name.rpartition("-")[0] for file in (tmp_path / "predictions").glob("*.png")}
    assert drawn == {"detect-scenes-c4-lr0.01", "detect-scenes-c4-lr0.02"}
    for wrong in ("x", "0", "0.1,0.1"):
        assert run(words(trained, tmp_path, "--lr", wrong)) == 2
        assert "rate" in capsys.readouterr().err


@pytest.mark.parametrize("name", [n for n in list_recipes("eval") if n.startswith("detect_")])
def test_every_recipe_for_detection_takes_two_steps(
    trained: Path, tmp_path: Path, name: str
) -> None:
    assert run(words(trained, tmp_path, "--recipe", name, "--iterations", "2")) == 0
    recipe, settings = read_recipe(name, "eval"), entries(tmp_path)[0]["settings"]
    assert (settings["arch"], settings["masks"]) == (recipe["arch"], recipe["masks"])


def test_only_norms_are_not_decayed() -> None:
    config = DetectConfig(data="scenes", arch="fpn", masks=True, width=8, hidden=8)
    model = build_detector(small_backbone(), 3, config)
    decayed, exempt = make_optimizer(model, config).param_groups
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {id(p) for p in exempt["params"]} == {id(p) for m in norms for p in m.parameters()}
    assert decayed["weight_decay"] == 1e-4 and exempt["weight_decay"] == 0
    total = len(decayed["params"]) + len(exempt["params"])
    assert total == len(list(model.parameters()))


def test_wrong_input_is_one_message(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, message in (
        (["--data", str(tmp_path / "none")], "does not exist: expected a folder"),
        (["--data", str(trained)], "holds no boxes in a known format"),
        (["--arch", "yolo"], "arch"),
        (["--val-split", "test"], "scenes has no split 'test'"),
    ):
        assert run(words(trained, tmp_path / "out", *flags)) == 2
        said = capsys.readouterr().err.strip()
        assert message in said and len(said.splitlines()) == 1


def test_masks_of_the_validation_set_are_checked_before_training(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_coco(tmp_path / "coco")
    text = changed("annotations", segmentation=None)
    (root / "annotations/instances_val2017.json").write_text(text)
    assert run(words(trained, tmp_path / "out", "--data", str(root), "--masks")) == 2
    assert "instances_val2017.json: annotation 10 has no mask" in capsys.readouterr().err


def test_voc_is_evaluated_by_its_own_rule(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cat = voc_object("cat", (1, 1, 30, 20))
    images = {f"{n}": cat for n in range(4)}
    root = make_voc(tmp_path / "VOC2012", {"train": images, "val": {"v": cat}})
    for n in range(4):  # images that differ
        Image.new("RGB", (40, 30), (60 * n, 90, 120)).save(root / "JPEGImages" / f"{n}.jpg")
    assert run(words(trained, tmp_path / "out", "--data", str(root), "--masks")) == 2
    assert "has no masks" in capsys.readouterr().err
    assert run(words(trained, tmp_path / "out", "--data", str(root))) == 0
    assert "(VOC area), 1 images" in capsys.readouterr().out
    for name, folder in (
        ("v", "out2"),
        ("0", "out3"),
    ):  # in the validation set, in the training set
        (root / "JPEGImages" / f"{name}.jpg").write_bytes(b"nothing")
        assert run(words(trained, tmp_path / folder, "--data", str(root))) == 1
        said = capsys.readouterr().err
        assert f"JPEGImages/{name}.jpg" in said and len(said.strip().splitlines()) == 1
    result = entries(tmp_path / "out")[0]["result"]
    assert sorted(result["by_rule"]) == ["11-point", "area"]
    assert find_network(trained).stem == "medium"


@pytest.mark.parametrize("kind", ["voc", "coco"])
def test_a_pack_gives_the_result_of_its_folder(trained: Path, tmp_path: Path, kind: str) -> None:
    if kind == "voc":
        cat = voc_object("cat", (1, 1, 30, 20))
        images = {f"{n}": cat for n in range(4)}
        root = make_voc(tmp_path / "VOC2007", {"trainval": images, "test": {"v": cat, "w": cat}})
    else:
        root = make_coco(tmp_path / "some")
    for n, file in enumerate(sorted(root.rglob("*.jpg"))):  # images that differ
        Image.new("RGB", (40, 30), (40 * n, 90, 120)).save(file)
    assert pack(root, tmp_path / "shards") == 0
    masks = ["--arch", "fpn", "--masks"] if kind == "coco" else []
    for name, data in (("folder", root), ("pack", tmp_path / "shards")):
        assert run(words(trained, tmp_path / name, "--data", str(data), *masks)) == 0
    one, other = (entries(tmp_path / name)[0]["result"] for name in ("folder", "pack"))
    different = {key for key in one if one[key] != other[key]}
    assert different <= {"seconds", "written", "steps_per_second"}
    assert one["rule"] == ("COCO" if kind == "coco" else "VOC 11-point")


OVERFIT = {
    "--batch-size": "8",
    "--lr-batch-size": "8",
    "--limit": "8",
    "--val-limit": "8",
    "--short-sides": "64",
    "--test-side": "64",
    "--rois": "16",
    "--anchors": "64",
    "--width": "32",
    "--hidden": "64",
    "--warmup": "20",
    "--precise-bn": "200",
}


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["c4"], ["c4", "--masks"], ["fpn", "--masks"]])
def test_it_overfits_eight_scenes(tmp_path: Path, flags: list[str]) -> None:
    backbone, out = tmp_path / "run", tmp_path / "out"
    assert (
        tiny_run(
            backbone, "--epochs", "1", "--stem", "medium", "--width", "16", "--image-size", "32"
        )
        == 0
    )
    same = ["--train-split", "train", "--val-split", "train"]
    settings = [word for pair in OVERFIT.items() for word in pair]
    # A step of FPN costs half as much; without norm layers it needs a lower learning rate.
    steps, rate = ("400", "0.02") if flags[0] == "fpn" else ("200", "0.05")
    steps = "380" if flags == ["c4", "--masks"] else steps  # C4's masks take longest
    settings += ["--iterations", steps, "--lr", rate]
    proposals = ["--proposals", "200", "32", "200", "32"]
    assert run(words(backbone, out, "--arch", *flags, *same, *settings, *proposals)) == 0
    result = entries(out)[0]["result"]
    assert result["AP50"] > 0.9
    if "--masks" in flags:
        assert result["mask"]["AP50"] > 0.9
