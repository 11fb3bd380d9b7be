"""Segmentation from the command line: answers, resuming, devices, rates, pictures and mistakes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from lewel.api import configure
from lewel.cli import run
from lewel.comparing import COLUMNS, numbers_of, result_rows
from lewel.data.masks import SceneMasks, open_masks
from lewel.data.voc import palette
from lewel.eval.iou import count_pixels, judge_masks
from lewel.eval.results import Results
from lewel.methods.segmenter import Segmenter
from lewel.nn.backbone import ResNetBackbone, build_resnet
from lewel.nn.dense import dense
from lewel.optim.schedules import poly
from lewel.recipes import list_recipes
from lewel.train.loop import take_step
from tests.data.mask_layouts import make_folder, make_voc
from tests.running import tiny_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("segmented") / "run"
    assert tiny_run(out, "--epochs", "1") == 0
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("masks") / "halves", {"train": 12, "val": 5})


SMALL = {
    "--iterations": "6",
    "--batch-size": "4",
    "--crop": "16",
    "--channels": "8",
    "--auxiliary-channels": "8",
    "--workers": "0",
    "--accelerator": "cpu",
}


def words(backbone: Path | str, data: Path | str, out: Path, *flags: str) -> list[str]:
    small = [word for pair in SMALL.items() if pair[0] not in flags for word in pair]
    return ["segment", str(backbone), "--data", str(data), "--out", str(out), *small, *flags]


def entries(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "results" / "segment.json").read_text())


def test_it_learns_and_says_what_it_found(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = ("--iterations", "60", "--lr", "0.05", "--lr-batch-size", "4")
    assert run(words(trained, folder, tmp_path, *longer)) == 0
    said = capsys.readouterr().out
    assert "segment on halves: mIoU" in said and f"lewel results {tmp_path}" in said
    answer = entries(tmp_path)[0]["answer"]
    assert answer["miou"] > 0.4  # the ground alone gives 0.17
    assert answer["miou"] == pytest.approx(np.mean(list(answer["per_class"].values())))
    assert answer["images"] == 5 and answer["learned_from"] == 12 and answer["output_stride"] == 8
    assert answer["interval"][0] <= answer["miou"] <= answer["interval"][1]
    assert run(words(trained, folder, tmp_path, *longer)) == 0
    assert "Known from" in capsys.readouterr().out
    assert not list(tmp_path.glob("results/learning-*/checkpoints"))

    # The pictures say what the answer says.
    _, val = open_masks(str(folder), size=16, split=None, limit=None, seed=0)
    colours = {tuple(colour): number for number, colour in enumerate(palette().tolist())}
    rows = []
    for index, name in enumerate(answer["pictures"]):
        picture = np.asarray(Image.open(tmp_path / name))
        image, mask = val.pair(index)
        assert np.array_equal(picture[:, :30], image.permute(1, 2, 0).numpy())
        masks = [
            torch.tensor([[colours[tuple(pixel)] for pixel in row] for row in part.tolist()])
            for part in (picture[:, 38:68], picture[:, 76:])
        ]
        assert torch.equal(masks[0], mask.long())
        rows.append(count_pixels(masks[1], mask, 3))
    assert judge_masks(torch.stack(rows), tuple("abc"))["miou"] == answer["miou"]


def test_a_stopped_one_goes_on_exactly(
    trained: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(words(trained, folder, tmp_path / "whole")) == 0
    steps: list[int] = []

    def stops(training: Any, *rest: Any) -> Any:
        steps.append(training.step)
        if len(steps) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return take_step(training, *rest)

    monkeypatch.setattr("lewel.train.loop.take_step", stops)
    assert run(words(trained, folder, tmp_path / "cut")) == 143
    assert run(words(trained, folder, tmp_path / "cut")) == 0
    assert "resumed at step 4" in capsys.readouterr().out
    assert steps == [0, 1, 2, 3, 4, 5]
    one, two = (entries(tmp_path / name)[0]["answer"] for name in ("whole", "cut"))
    same = ("miou", "per_class", "interval", "pixel_accuracy")
    assert [one[key] for key in same] == [two[key] for key in same]


def test_two_devices_judge_all_images(trained: Path, folder: Path, tmp_path: Path) -> None:
    assert run(words(trained, folder, tmp_path, "--devices", "2")) == 0
    answer = entries(tmp_path)[0]["answer"]
    assert answer["images"] == 5
    assert len(answer["pictures"]) == 3
    assert run(words(trained, folder, tmp_path, "--devices", "2", "--sync-batch-norm")) == 2


def test_several_rates_are_all_shown_and_the_choice_is_labelled(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(trained, folder, tmp_path, "--lr", "0.1,0.0001")) == 0
    said = capsys.readouterr().out
    assert "the best of these rates, chosen on the judged split: 0.1: " in said
    one, two, chosen = (entry["answer"] for entry in entries(tmp_path))
    assert chosen["search"] == {"0.1": one["miou"], "0.0001": two["miou"]}
    assert chosen["miou"] == max(one["miou"], two["miou"])
    tasks = [row.cells[COLUMNS.index("task")] for row in result_rows(tmp_path, {})]
    assert [task.partition(" steps, ")[2] for task in tasks] == [
        "lr 0.1)",
        "lr 0.0001)",
        f"lr {chosen['lr']:g}, best of 2)",
    ]
    assert run(words(trained, folder, tmp_path, "--lr", "0.1")) == 0
    assert "Known from" in capsys.readouterr().out
    assert run(words(trained, folder, tmp_path, "--lr", "0.1,fast")) == 2
    assert "is no rate" in capsys.readouterr().err


def test_fresh_weights_are_the_baseline(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(trained, folder, tmp_path, "--scratch", "--short-side", "24")) == 0
    assert entries(tmp_path)[0]["question"]["weights"] == "untrained"
    assert run(["results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "supervised" in shown and "mIoU" in shown and "top-1" not in shown


@pytest.mark.parametrize("name", [n for n in list_recipes("eval") if n.startswith("segment")])
def test_recipes_take_steps(trained: Path, folder: Path, tmp_path: Path, name: str) -> None:
    assert run(words(trained, folder, tmp_path, "--recipe", name, "--short-side", "20")) == 0
    question = entries(tmp_path)[0]["question"]
    assert question["power"] == 0.9 and question["weight_decay"] == 5e-4


def test_a_network_of_timm(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--untrained", "--iterations", "2", "--image-size", "64", "--crop", "64")
    assert run(words("timm/resnet10t", folder, tmp_path, *flags)) == 0
    assert entries(tmp_path)[0]["answer"]["output_stride"] == 8
    assert run(words("timm/vit_tiny_patch16_224", folder, tmp_path / "b", *flags)) == 2
    assert "has no pyramid of maps" in capsys.readouterr().err


def test_bad_masks_are_counted_before_learning(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"i{number}" for number in range(8)]
    voc = make_voc(tmp_path / "VOC2012", {"train": names[:6], "val": names[6:]})
    Image.new("P", (30, 19)).save(voc / "SegmentationClass" / "i2.png")
    Image.new("L", (30, 20), 37).save(voc / "SegmentationClass" / "i7.png")
    assert run(words(trained, voc, tmp_path / "out")) == 1
    said = capsys.readouterr().err
    assert "2 of 8 images with masks can't be used, for example JPEGImages/i2.jpg: " in said
    assert not list((tmp_path / "out").glob("results/learning-*"))


def test_the_papers_number_stands_beside_what_is_like_it(tmp_path: Path) -> None:
    config = configure("imagenet", "imagenet_lewel_b_100ep", {})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    said = {"task": "segment", "backbone": "resnet50", "miou": 0.671, "interval": [0.66, 0.68]}
    for weights, data in (
        ("a", "VOC2012-train_aug"),
        ("a", "VOC2012-train"),
        ("untrained", "VOC2012-train_aug"),
    ):
        answer = {**said, "data": data, "images": 1449, "lr": 0.01}
        question = {"weights": weights, "data": data, "iterations": 9}
        Results(tmp_path).keep("segment", question, answer)
    rows = result_rows(tmp_path, numbers_of(tmp_path))
    like, unlike, fresh = (dict(zip(COLUMNS, row.cells, strict=True)) for row in rows)
    assert (like["result"], like["95 %"]) == ("mIoU 67.1%", "66.0-68.0")
    assert like["paper"] == "mIoU 67.6 (Table 3)"
    assert unlike["paper"] == fresh["paper"] == ""
    assert fresh["method"] == "supervised"


@pytest.mark.slow
def test_it_can_learn_eight_images_by_heart() -> None:
    source = SceneMasks("train", 128, 200)
    features = dense(ResNetBackbone(build_resnet("resnet10", stem="medium", width=16)), "resnet10")
    model = Segmenter(features, 11, channels=64, auxiliary_channels=32)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9, weight_decay=5e-4)
    # Scenes of one class: a class of a hundred pixels in all would take long to be worth learning.
    pairs = [pair for pair in map(source.pair, range(200)) if len(pair[1].unique()) == 2][:8]
    images = torch.stack([image for image, _ in pairs]).float() / 127.5 - 1
    images = images.contiguous(memory_format=torch.channels_last)
    masks = torch.stack([mask for _, mask in pairs])
    steps = 150
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = poly(0.1, step / steps, 0.9, 1e-4)
        loss = model.train()([images], masks.long()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = model.eval().scores(images).argmax(1)
    rows = [count_pixels(f, m, 11) for f, m in zip(found, masks, strict=True)]
    assert judge_masks(torch.stack(rows), source.classes)["miou"] > 0.9
