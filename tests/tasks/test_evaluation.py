"""Evaluation from the command line: k-NN, results, features for other tools, wrong input."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier
from torchvision import models

from lewel.cli.main import run
from lewel.data.sources.scenes import Scenes
from lewel.data.sources.source import Data, Subset, digest, digest_with_labels
from lewel.errors import UserError
from lewel.evaluate.scores import accuracy, bootstrap
from lewel.interop.backbones import find_network, open_backbone
from lewel.tasks.evaluator import labelled
from tests.cli.making import images
from tests.conftest import randomise_statistics
from tests.running import tiny_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "run"
    assert tiny_run(out, "--epochs", "1") == 0
    return out


def knn(backbone: Path | str, *flags: str) -> int:
    small = ["--limit", "200", "--workers", "0", "--accelerator", "cpu"]
    return run(["knn", str(backbone), "--data", "scenes", *small, *flags])


def entries(folder: Path) -> list[dict[str, dict[str, object]]]:
    return json.loads((folder / "results" / "knn.json").read_text())


def test_knn_equals_scikit_learn_on_the_features_that_embed_writes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert knn(trained, "--neighbours", "5", "--neighbours", "20", "--neighbours", "900") == 0
    said = capsys.readouterr().out
    assert "--neighbours 900 is more than the 200 labelled images" in said
    assert "the accuracy is for k = 5, 20." in said and "by k 5: " in said
    result = entries(trained)[-1]["result"]

    from lewel.data.sources.open import open_data

    data = open_data("scenes", image_size=16, limit=200)
    for name, source in (("train", data.train), ("val", data.val)):
        folder = tmp_path / name
        for index in range(len(source)):
            label = source.classes[source.labels[index]]
            (folder / label).mkdir(parents=True, exist_ok=True)
            pixels = source.read(index).permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / label / f"{index:05d}.png")
        out = tmp_path / f"{name}.npz"
        assert run(["embed", str(trained), str(folder), "--out", str(out), "--workers", "0"]) == 0
    files = {name: np.load(tmp_path / f"{name}.npz") for name in ("train", "val")}
    reference = KNeighborsClassifier(
        20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.1)
    ).fit(files["train"]["embedding"], files["train"]["label"])
    expected = reference.score(files["val"]["embedding"], files["val"]["label"])
    assert result["sweep"]["20"] == result["top1"] == pytest.approx(expected, abs=1e-9)
    assert result["images"] == 2000 and result["bank"] == 200
    assert sum(count for *_, count in result["confusion"]) == 2000


def test_an_identical_evaluation_is_cached_unless_recomputed(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert knn(trained) == 0
    before = entries(trained)
    capsys.readouterr()
    assert knn(trained, "--batch-size", "17") == 0
    assert "cached in" in capsys.readouterr().out
    assert entries(trained) == before
    assert knn(trained, "--again") == 0
    assert "cached in" not in capsys.readouterr().out
    assert len(entries(trained)) == len(before)
    assert knn(trained, "--untrained") == 0
    assert len(entries(trained)) == len(before) + 1
    assert run(["results", str(trained)]) == 0
    assert run(["results", str(trained / "checkpoints")]) == 2
    assert "has no results yet" in capsys.readouterr().err


def test_two_devices_give_the_same_result(trained: Path, tmp_path: Path) -> None:
    for devices in ("1", "2"):
        assert knn(trained, "--devices", devices, "--out", str(tmp_path / devices)) == 0
    one, two = (entries(tmp_path / devices)[0]["result"] for devices in ("1", "2"))
    assert one["confusion"] == two["confusion"]


def test_two_processes_do_not_embed_into_one_file(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one must not advise to remove what the first one is writing."""
    from lewel.tasks.embed import _claimed

    reading, writing = os.pipe()
    out = tmp_path / "x.npz"
    pid = os.fork()
    if pid == 0:
        with _claimed(tmp_path / "x.npz.parts", "other settings"):
            os.write(writing, b".")
            time.sleep(120)
    try:
        assert os.read(reading, 1) == b"."
        words = ["embed", str(trained), "scenes", "--limit", "35", "--workers", "0"]
        assert run([*words, "--out", str(out)]) == 2
        assert "Another process is writing" in capsys.readouterr().err
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    assert run([*words, "--out", str(out)]) == 2
    assert "remove it" in capsys.readouterr().err


def test_copies_by_other_names_are_a_warning_also_of_a_cached_result(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = images(tmp_path / "data" / "train", {"a": 20, "b": 20}).parent
    for path in list((data / "train").rglob("*.png")):
        copy = data / "val" / path.parent.name / f"copy-{path.name}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    words = ["knn", str(trained), "--data", str(data), "--workers", "0", "--accelerator", "cpu"]
    for _ in range(2):
        assert run([*words, "--out", str(tmp_path / "out")]) == 0
        assert "Warning: 100% of the validation images" in capsys.readouterr().out


def test_a_result_that_cannot_be_written_is_not_computed(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lewel.files.os.access", lambda *_: False)
    monkeypatch.setattr("lewel.tasks.evaluation.Task.compute", lambda *_: pytest.fail("computed"))
    words = ["knn", str(trained), "--data", "scenes", "--limit", "37", "--accelerator", "cpu"]
    assert run(words) == 2
    assert "cannot be written (permission denied): choose another" in capsys.readouterr().err


def test_embed_resumes_and_refuses_parts_of_other_settings(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from lewel.evaluate.features import Extractor
    from lewel.tasks import embed as embedding

    monkeypatch.setattr(embedding, "PART", 10)
    whole, cut = tmp_path / "whole.npz", tmp_path / "cut.npz"
    words = ["embed", str(trained), "scenes", "--limit", "35", "--workers", "0", "--out"]
    assert run([*words, str(whole)]) == 0
    real, calls = Extractor.features, []

    def dies(self: Extractor, *arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return real(self, *arguments)

    monkeypatch.setattr(Extractor, "features", dies)
    with pytest.raises(MemoryError):
        run([*words, str(cut)])
    assert not cut.exists()
    assert run([*words[:4], "30", *words[5:], str(cut)]) == 2
    assert "parts of other features" in capsys.readouterr().err
    assert run([*words, str(cut)]) == 0
    assert len(calls) == 5  # two, one that died, and the two that were left
    one, two = np.load(whole), np.load(cut)
    assert sorted(one) == ["embedding", "label", "path", "split"]
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert run([*words, str(tmp_path / "x.csv")]) == 2
    assert not list(tmp_path.glob("*.parts"))


def test_embed_writes_parquet(trained: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for kind in ("parquet", "npz"):
        out = str(tmp_path / f"f.{kind}")
        words = ["embed", str(trained), "scenes", "--limit", "12", "--workers", "0"]
        assert run([*words, "--out", out]) == 0
    table, arrays = pq.read_table(tmp_path / "f.parquet"), np.load(tmp_path / "f.npz")
    assert table["path"].to_pylist() == arrays["path"].tolist()
    assert table["label"].to_pylist() == arrays["label"].tolist()
    assert set(table["split"].to_pylist()) == {*arrays["split"].tolist()} == {"train"}
    assert np.array_equal(np.array(table["embedding"].to_pylist(), np.float32), arrays["embedding"])


def test_embed_writes_all_splits_part_by_part(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import pyarrow.parquet as pq

    from lewel.data.sources.open import open_every_split
    from lewel.tasks import embed as embedding

    draw = np.random.default_rng(0)
    counts = {"train/cat": 7, "train/dog": 6, "val/cat": 5, "test": 4}
    for folder, count in counts.items():
        (tmp_path / "set" / folder).mkdir(parents=True)
        for index in range(count):
            pixels = draw.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / folder / f"i{'i' * index}.png")
    monkeypatch.setattr(embedding, "PART", 3)
    words = ["embed", str(trained), str(tmp_path / "set"), "--workers", "0", "--out"]
    for kind in ("parquet", "npz"):
        assert run([*words, str(tmp_path / f"f.{kind}")]) == 0
        assert "of 22 images (train 13, val 5, test 4) to" in capsys.readouterr().out
    file, arrays = pq.ParquetFile(tmp_path / "f.parquet"), np.load(tmp_path / "f.npz")
    assert file.num_row_groups == 5 + 2 + 2
    table = file.read()
    splits = table["split"].to_pylist()
    assert splits == arrays["split"].tolist() == ["train"] * 13 + ["val"] * 5 + ["test"] * 4
    paths = table["path"].to_pylist()
    assert paths == arrays["path"].tolist() and len({*paths}) == 22
    assert all(path.startswith(split) for path, split in zip(paths, splits, strict=True))
    labels = ["cat"] * 7 + ["dog"] * 6 + [None] * 9
    assert table["label"].to_pylist() == labels
    assert arrays["label"].tolist() == [label or "" for label in labels]
    assert np.array_equal(np.array(table["embedding"].to_pylist(), np.float32), arrays["embedding"])
    found = open_every_split("scenes", 32, [])
    assert {split: len(one) for split, one in found.items()} == {"train": 20_000, "val": 2_000}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: models.resnet18(num_classes=7), "resnet18"),
        (lambda: models.wide_resnet50_2(), "wide_resnet50_2"),
        (lambda: timm.create_model("resnet50"), "resnet50"),
    ],
)
def test_third_party_resnets_are_recognised_by_their_tensors_and_bit_equal(
    tmp_path: Path, make: object, name: str
) -> None:
    theirs = make().eval()  # type: ignore[operator]
    randomise_statistics(theirs)
    named = {f"module.encoder_q.{key}": value for key, value in theirs.state_dict().items()}
    torch.save({"state_dict": named}, tmp_path / "theirs.pth")
    network = find_network(tmp_path / "theirs.pth", image_size=64)
    assert (network.name, network.stem, network.width) == (name, "imagenet", 64)
    ours = open_backbone(tmp_path / "theirs.pth", network)
    images = torch.randn(2, 3, 64, 64)
    theirs.fc = torch.nn.Identity()
    with torch.no_grad():
        assert torch.equal(ours.net(images), theirs(images))


def test_a_third_party_transformer_needs_its_name(tmp_path: Path) -> None:
    net = timm.create_model("vit_tiny_patch16_224", img_size=64)
    torch.save(net.state_dict(), tmp_path / "vit.pth")
    with pytest.raises(UserError, match="--backbone timm/NAME"):
        find_network(tmp_path / "vit.pth")
    network = find_network(tmp_path / "vit.pth", "timm/vit_tiny_patch16_224", 64)
    backbone = open_backbone(tmp_path / "vit.pth", network)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(backbone(images), net.eval().forward_features(images)[:, 1:])


def test_our_checkpoints_contain_their_stem(trained: Path) -> None:
    newest = sorted((trained / "checkpoints").glob("*.pt"))[-1]
    assert find_network(newest) == find_network(trained)
    assert find_network(newest).stem == "small"


def folder_of(path: Path, classes: dict[str, int]) -> Path:
    for name, many in classes.items():
        (path / name).mkdir(parents=True)
        for index in range(many):
            pixels = np.random.default_rng(index).integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / name / f"{index}.png")
    return path


def test_wrong_data_is_one_message(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = folder_of(tmp_path / "flat", {"": 4})
    lonely = folder_of(tmp_path / "lonely", {"a": 20, "b": 1})
    parted = tmp_path / "parted"
    folder_of(parted / "train", {"a": 4, "b": 4})
    folder_of(parted / "val", {"a": 4, "c": 4})
    broken = folder_of(tmp_path / "broken", {"a": 20, "b": 20})
    for index in range(20):
        (broken / "a" / f"{index}.png").write_bytes(b"x")
    for data, code, message in (
        (flat, 2, "has no labels to evaluate with"),
        (lonely, 2, "The class 'b' of"),
        (parted, 2, "have different class folders, c only in val; b only in train"),
        (broken, 1, "images are corrupt, for example"),
    ):
        words = ["knn", str(trained), "--data", str(data), "--workers", "0"]
        assert run(words) == code, data
        said = capsys.readouterr().err.strip()
        assert message in said
        assert len(said.splitlines()) == 1
    for words, message in (
        (["knn", str(trained)], "data"),
        (["knn", str(tmp_path), "--data", "scenes"], "holds no backbone"),
        (["knn", "resnet19", "--data", "scenes"], "is not a backbone"),
        (["knn", str(trained), "--data", "scenes", "--neighbours", "x"], "neighbours"),
    ):
        assert run(words) == 2, words
        assert message in capsys.readouterr().err


def test_bank_and_queries_that_share_images_are_refused() -> None:
    everything = Scenes("train", 16, 400)
    train, val = Subset(everything, np.arange(300)), Subset(everything, np.arange(299, 400))
    with pytest.raises(UserError, match="1 images of x are both in the training and"):
        labelled(Data(everything, train, val, ()), "x")
    apart = Subset(everything, np.arange(300, 400))
    assert labelled(Data(everything, train, apart, ()), "x") == (train, apart)


def test_other_labels_of_the_same_images_change_the_settings() -> None:
    before, after = Scenes("train", 16, 40), Scenes("train", 16, 40)
    assert digest_with_labels(before) == digest_with_labels(after)
    after.labels = after.labels[::-1].copy()
    assert digest(before) == digest(after)
    assert digest_with_labels(before) != digest_with_labels(after)


def test_scores_against_hand_counted_ones() -> None:
    scores = torch.tensor([[0.9, 0.1, 0], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1]])
    found = accuracy(scores, torch.tensor([0, 2, 0, 0]), ["a", "b", "c"])
    assert found["top1"] == 0.75
    assert found["top5"] == 1.0
    assert found["per_class"] == {"a": pytest.approx(2 / 3), "c": 1.0}
    assert found["confusion"] == [[0, 0, 2], [0, 1, 1], [2, 2, 1]]


def test_the_interval_is_that_of_resampled_images() -> None:
    right = (np.arange(500) < 310).astype(float)
    draws = np.random.default_rng(1).choice(right, (4000, 500)).mean(1)
    low, high = bootstrap(right)
    assert (low, high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=0.012)
