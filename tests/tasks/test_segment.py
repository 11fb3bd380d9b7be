"""Segmentation from the command line: results, resuming, devices, learning rates, wrong input."""

import json
import os
import re
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.cli.main import run
from lewel.config.evaluate import SegmentConfig
from lewel.config.recipes import list_recipes
from lewel.data.dense.masks import open_masks
from lewel.data.dense.scene_masks import SceneMasks
from lewel.data.dense.voc import palette
from lewel.evaluate.iou import count_pixels, mean_iou
from lewel.interop.backbones import Network
from lewel.nn.backbone import ResNetBackbone, build_resnet
from lewel.optim.schedules import poly
from lewel.pages.segments import GAP, LINE, enlargement, segmentation_picture
from lewel.tasks.results import COLUMNS, result_rows
from lewel.tasks.segment import make_plan, predict
from lewel.tasks.segment_data import Pairs
from lewel.train.devices import Placement
from lewel.train.loop import take_step
from lewel.transfer.dilation import dense
from lewel.transfer.fcn import FCN
from tests.data.dense.mask_layouts import make_folder, make_voc
from tests.data.pack.photos import pack
from tests.running import trained_once


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_once(tmp_path_factory, "segmented")


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


def test_it_trains_and_prints_its_result(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = ("--iterations", "60", "--lr", "0.05", "--lr-batch-size", "4")
    assert run(words(trained, folder, tmp_path, *longer)) == 0
    said = capsys.readouterr().out
    assert "segment on halves: mIoU" in said and f"lewel results {tmp_path}" in said
    result = entries(tmp_path)[0]["result"]
    assert result["miou"] > 0.4  # the background alone gives 0.17
    assert result["miou"] == pytest.approx(np.mean(list(result["per_class"].values())))
    assert (result["images"], result["training_images"], result["output_stride"]) == (5, 12, 8)
    assert result["interval"][0] <= result["miou"] <= result["interval"][1]
    assert run(words(trained, folder, tmp_path, *longer)) == 0
    assert "cached in" in capsys.readouterr().out
    assert not list(tmp_path.glob("results/learning-*/checkpoints"))

    # The pictures show the predictions of the result.
    _, val = open_masks(str(folder), size=16, split=None, limit=None, seed=0)
    colours = {tuple(colour): number for number, colour in enumerate(palette().tolist())}
    rows = []
    scale = enlargement(30)
    for index, name in enumerate(result["pictures"]):
        image, mask = val.pair(index)
        picture = np.asarray(Image.open(tmp_path / name))[2 * LINE :]
        parts = [picture[:, n * (30 * scale + GAP) :] for n in range(3)]
        small = [part[: scale * mask.shape[0] : scale, : 30 * scale : scale] for part in parts]
        assert np.array_equal(small[0], image.permute(1, 2, 0).numpy())
        masks = [
            torch.tensor([[colours[tuple(pixel)] for pixel in row] for row in part.tolist()])
            for part in small[1:]
        ]
        assert torch.equal(masks[0], mask.long())
        rows.append(count_pixels(masks[1], mask, 3))
    assert mean_iou(torch.stack(rows), tuple("abc"))["miou"] == result["miou"]


def test_pictures_name_their_images_and_counts_stay_on_the_device(
    trained: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    moved: list[tuple[int, ...]] = []
    real = torch.Tensor.cpu

    def picture(*parts: Any) -> Image.Image:
        names.append(parts[-1])
        return segmentation_picture(*parts)

    monkeypatch.setattr("lewel.tasks.segment.segmentation_picture", picture)
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda one: moved.append(tuple(one.shape)) or real(one)
    )
    assert run(words(trained, folder, tmp_path, "--iterations", "2")) == 0
    _, val = open_masks(str(folder), size=16, split=None, limit=None, seed=0)
    assert names == [val.describe(index) for index in range(5)]
    assert (5, 3, 3) in moved and (3, 3) not in moved  # all counts at once


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_images_on_their_way_to_a_gpu_are_pinned(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    pinned: list[bool] = []

    def loader(self: Pairs, workers: int, pin: bool = False) -> list[object]:
        pinned.append(pin)
        raise InterruptedError

    monkeypatch.setattr(Pairs, "loader", loader)
    run: Any = SimpleNamespace(
        evaluator=SimpleNamespace(config=SegmentConfig(data="scenes")),
        fabric=SimpleNamespace(device=torch.device(device)),
        extractor=SimpleNamespace(workers=0),
        bar=lambda *about: nullcontext(),
    )
    with pytest.raises(InterruptedError):
        predict(run, FCN.__new__(FCN), SceneMasks("val", 16, 3))
    assert pinned == [device == "cuda"]


def test_saved_masks_give_the_same_miou(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(trained, folder, tmp_path)) == 0
    assert run(words(trained, folder, tmp_path, "--save-predictions")) == 0
    said = capsys.readouterr().out
    assert "cached in" not in said and "wrote all predictions to" in said
    assert run(words(trained, folder, tmp_path, "--save-predictions")) == 0
    assert "cached in" in capsys.readouterr().out
    (entry,) = entries(tmp_path)
    kept = tmp_path / entry["result"]["predictions"]
    assert (kept / "classes.txt").read_text().split() == ["0", "1", "2"]
    inside, union = np.zeros(3), np.zeros(3)
    for file in sorted(kept.rglob("*.png")):
        found = np.asarray(Image.open(file))
        truth = np.asarray(Image.open(folder / "masks" / file.relative_to(kept / "images")))
        assert Image.open(file).mode == "P" and found.shape == truth.shape
        for number in range(3):
            here, there = (found == number) & (truth != 255), truth == number
            inside[number] += (here & there).sum()
            union[number] += (here | there).sum()
    assert len(list(kept.rglob("*.png"))) == 5
    assert entry["result"]["miou"] == pytest.approx(float((inside / union).mean()), abs=1e-6)


def test_a_dry_run_gives_the_time_and_writes_nothing(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--dry-run", "--iterations", "100000", "--lr", "0.1,0.2")
    assert run(words(trained, folder, tmp_path / "out", *flags)) == 0
    said = capsys.readouterr().out
    assert "iterations: 100000" in said and "training images: 12" in said
    assert "validation images: 5" in said and "learning rates: 2" in said
    pattern = r"time: about ([\d.]+) (minutes|hours|days) on 1 x cpu: ([\d.e-]+) s a step"
    about = re.search(pattern, said)
    assert about is not None, said
    hours = float(about[1]) * {"minutes": 1 / 60, "hours": 1, "days": 24}[about[2]]
    assert hours == pytest.approx(200_000 * float(about[3]) / 3600, rel=0.15)
    assert not (tmp_path / "out").exists()


def test_a_stopped_segmentation_resumes_exactly(
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
    one, two = (entries(tmp_path / name)[0]["result"] for name in ("whole", "cut"))
    same = ("miou", "per_class", "interval", "pixel_accuracy")
    assert [one[key] for key in same] == [two[key] for key in same]


@pytest.mark.slow  # two processes; test_evaluation.py has two devices in the default suite
def test_two_devices_evaluate_all_images(trained: Path, folder: Path, tmp_path: Path) -> None:
    assert run(words(trained, folder, tmp_path, "--devices", "2")) == 0
    result = entries(tmp_path)[0]["result"]
    assert result["images"] == 5
    assert len(result["pictures"]) == 3
    assert run(words(trained, folder, tmp_path, "--devices", "2", "--sync-batch-norm")) == 2


def test_all_learning_rates_are_shown_and_the_best_is_labelled(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(trained, folder, tmp_path, "--lr", "0.1,0.0001")) == 0
    said = capsys.readouterr().out
    assert "the best of these learning rates, on the validation set: 0.1: " in said
    one, two, chosen = (entry["result"] for entry in entries(tmp_path))
    assert chosen["by_lr"] == {"0.1": one["miou"], "0.0001": two["miou"]}
    assert chosen["miou"] == max(one["miou"], two["miou"])
    tasks = [row.cells[COLUMNS.index("task")] for row in result_rows(tmp_path, {})]
    assert [task.partition(" steps, ")[2] for task in tasks] == [
        "lr 0.1)",
        "lr 0.0001)",
        f"lr {chosen['lr']:g}, best of 2)",
    ]
    assert run(words(trained, folder, tmp_path, "--lr", "0.1")) == 0
    assert "cached in" in capsys.readouterr().out
    assert run(words(trained, folder, tmp_path, "--lr", "0.1,fast")) == 2
    assert "is no learning rate" in capsys.readouterr().err


def test_random_initialisation_is_the_baseline(
    trained: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(trained, folder, tmp_path, "--scratch", "--short-side", "24")) == 0
    assert entries(tmp_path)[0]["settings"]["weights"] == "untrained"
    assert run(["results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "supervised" in shown and "mIoU" in shown and "top-1" not in shown
    pictures = entries(tmp_path)[0]["result"]["pictures"]
    assert all("halves-scratch-lr0.01" in name for name in pictures)


@pytest.mark.parametrize("name", [n for n in list_recipes("eval") if n.startswith("segment")])
def test_recipes_take_steps(trained: Path, folder: Path, tmp_path: Path, name: str) -> None:
    assert run(words(trained, folder, tmp_path, "--recipe", name, "--short-side", "20")) == 0
    settings = entries(tmp_path)[0]["settings"]
    assert settings["power"] == 0.9 and settings["weight_decay"] == 5e-4


@pytest.mark.parametrize(("width", "last"), [(8, False), (16, True)])
def test_narrow_networks_are_not_trained_in_channels_last(width: int, last: bool) -> None:
    """oneDNN writes past its memory in strided 1x1 convolutions of fewer than 16 channels."""
    config = SegmentConfig(data="scenes", crop=128)
    network = Network("resnet10", "small", width)
    evaluator = SimpleNamespace(network=network, config=config, train=None)
    place, extractor = Placement(1, 1, "lewel"), SimpleNamespace(workers=0)
    run: Any = SimpleNamespace(place=place, extractor=extractor, evaluator=evaluator)
    assert make_plan(run, config, 20).channels_last == last


def test_a_network_of_timm(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--untrained", "--iterations", "2", "--image-size", "64", "--crop", "64")
    assert run(words("timm/resnet10t", folder, tmp_path, *flags)) == 0
    assert entries(tmp_path)[0]["result"]["output_stride"] == 8
    assert run(words("timm/vit_tiny_patch16_224", folder, tmp_path / "b", *flags)) == 2
    assert "gives no feature maps at strides 8, 16 and 32" in capsys.readouterr().err


def test_corrupt_masks_are_counted_before_training(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"i{number}" for number in range(8)]
    voc = make_voc(tmp_path / "VOC2012", {"train": names[:6], "val": names[6:]})
    Image.new("P", (30, 19)).save(voc / "SegmentationClass" / "i2.png")
    Image.new("L", (30, 20), 37).save(voc / "SegmentationClass" / "i7.png")
    assert run(words(trained, voc, tmp_path / "out")) == 1
    said = capsys.readouterr().err
    assert "2 of 8 images with masks cannot be used, for example JPEGImages/i2.jpg: " in said
    assert not list((tmp_path / "out").glob("results/learning-*"))


@pytest.mark.slow
def test_it_overfits_eight_images() -> None:
    source = SceneMasks("train", 128, 200)
    features = dense(ResNetBackbone(build_resnet("resnet10", stem="medium", width=16)), "resnet10")
    model = FCN(features, 11, channels=64, auxiliary_channels=32)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9, weight_decay=5e-4)
    # Scenes of one class: a class of a hundred pixels in all would take long to fit.
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
    assert mean_iou(torch.stack(rows), source.classes)["miou"] > 0.9


def test_a_pack_gives_the_result_of_its_folder(trained: Path, folder: Path, tmp_path: Path) -> None:
    assert pack(folder, tmp_path / "shards", "--shard-images", "4") == 0
    for name, data in (("folder", folder), ("pack", tmp_path / "shards")):
        assert run(words(trained, data, tmp_path / name)) == 0
    one, other = (entries(tmp_path / name)[0]["result"] for name in ("folder", "pack"))
    for key in ("miou", "per_class", "images", "training_images", "interval"):
        assert one[key] == other[key]
