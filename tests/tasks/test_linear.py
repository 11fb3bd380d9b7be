"""Linear and semi-supervised evaluation from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.cli.main import run
from lewel.config.evaluate import FinetuneConfig
from lewel.config.recipes import list_recipes
from lewel.data.sources.files import Files
from lewel.data.sources.open import open_data
from lewel.data.sources.scenes import Scenes
from lewel.data.sources.source import Subset
from lewel.errors import RunError, UserError
from lewel.tasks.classify import make_optimizer
from lewel.tasks.finetune import labelled_subset, without_labels
from lewel.train.loop import take_step
from lewel.transfer.classifier import Classifier
from tests.conftest import randomise_statistics, small_backbone
from tests.running import tiny_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("linear") / "run"
    assert tiny_run(out, "--epochs", "1") == 0
    return out


def words(task: str, backbone: Path, out: Path, *flags: str) -> list[str]:
    small = ["--limit", "200", "--epochs", "2", "--batch-size", "40", "--workers", "0"]
    common = ["--data", "scenes", "--out", str(out), "--accelerator", "cpu"]
    return [task, str(backbone), *common, *small, *flags]


def result(out: Path, task: str) -> dict[str, object]:
    return json.loads((out / "results" / f"{task}.json").read_text())[-1]["result"]


def test_a_frozen_backbone_does_not_move_and_the_classifier_does() -> None:
    backbone = small_backbone()
    randomise_statistics(backbone)
    model = Classifier(backbone, 5, frozen=True).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        model([torch.randn(8, 3, 16, 16)], torch.randint(5, (8,))).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith("backbone."), name


def test_fine_tuning_trains_both_each_at_its_own_learning_rate() -> None:
    model = Classifier(small_backbone(), 5, frozen=False).train()
    config = FinetuneConfig(data="scenes", lr=1.0, backbone_lr=0.0001)
    head, body = make_optimizer(model, config).param_groups
    assert len(head["params"]) == 2
    assert body["lr_scale"] == pytest.approx(1e-4)
    assert {id(p) for p in body["params"]} == {id(p) for p in model.backbone.parameters()}


@pytest.mark.parametrize("devices", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_linear_trains_and_prints_its_result(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], devices: str
) -> None:
    assert run(words("linear", trained, tmp_path, "--devices", devices)) == 0
    said = capsys.readouterr().out
    assert "linear on scenes: top-1" in said
    assert f"lewel results {tmp_path}" in said
    assert result(tmp_path, "linear")["images"] == 2000
    assert not list(tmp_path.glob("results/learning-*/checkpoints"))
    assert run(words("linear", trained, tmp_path)) == 0
    assert "cached in" in capsys.readouterr().out


def test_an_interrupted_linear_evaluation_resumes_exactly(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(words("linear", trained, tmp_path / "whole")) == 0
    steps: list[int] = []

    def breaks(training: object, *rest: object) -> object:
        steps.append(training.step)
        if len(steps) == 8:
            raise RunError("the power went")
        return take_step(training, *rest)

    monkeypatch.setattr("lewel.train.loop.take_step", breaks)
    assert run(words("linear", trained, tmp_path / "cut")) == 1
    assert run(words("linear", trained, tmp_path / "cut")) == 0
    assert "resumed at step 5" in capsys.readouterr().out
    assert steps == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9]
    one, two = (result(tmp_path / name, "linear") for name in ("whole", "cut"))
    assert one["confusion"] == two["confusion"]


def test_a_failed_validation_does_not_lose_the_training(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*arguments: object) -> None:
        raise RunError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr("lewel.tasks.evaluation.readable_features", fails)
        assert run(words("linear", trained, tmp_path)) == 1
    assert list(tmp_path.glob("results/learning-*/checkpoints/step-*.pt"))
    capsys.readouterr()
    assert run(words("linear", trained, tmp_path)) == 0
    assert "resumed at step 10" in capsys.readouterr().out
    assert not list(tmp_path.glob("results/learning-*/checkpoints"))


def test_finetune_and_the_supervised_baseline(trained: Path, tmp_path: Path) -> None:
    assert run(words("finetune", trained, tmp_path, "--labels", "20%")) == 0
    assert result(tmp_path, "finetune")["labelled"] == pytest.approx(40, abs=5)
    assert run(words("finetune", trained, tmp_path, "--labels", "100%", "--scratch")) == 0
    entry = json.loads((tmp_path / "results" / "finetune.json").read_text())[-1]
    assert entry["settings"]["weights"] == "untrained"
    assert entry["result"]["labelled"] == 200


def test_a_linear_probe_on_cached_features(trained: Path, tmp_path: Path) -> None:
    assert run(words("linear", trained, tmp_path, "--fast")) == 0
    assert result(tmp_path, "linear_fast")["top1"] > 0.1


def test_copies_in_the_validation_set_are_warned_of(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Scenes("train", 16, 40)
    for index in range(40):
        image = Image.fromarray(source.read(index).permute(1, 2, 0).numpy())
        name = source.classes[source.labels[index]]
        for part in ("train", "val"):  # other bytes and other names, but the same pixels
            (folder := tmp_path / "data" / part / name).mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{part}{index}.png", compress_level=1 if part == "val" else 6)
    for task, flags in (("linear", ["--cached-features", "--epochs", "1"]), ("knn", [])):
        words = [task, str(trained), "--data", str(tmp_path / "data"), "--out", str(tmp_path)]
        for _ in range(2):  # measured and cached
            assert run([*words, "--accelerator", "cpu", "--workers", "0", *flags]) == 0
            output = " ".join(capsys.readouterr().out.split())
            assert "100% of the validation images" in output and "Are they copies?" in output


def test_a_fraction_of_the_labels_is_balanced_and_seeded() -> None:
    source = Scenes("train", 16, 500)
    some, again, other = (labelled_subset(source, "20%", seed) for seed in (1, 1, 2))
    assert np.array_equal(some.indices, again.indices)
    assert not np.array_equal(some.indices, other.indices)
    assert source.labels is not None and some.labels is not None
    for number in range(10):
        mine = (source.labels == number).sum()
        assert (some.labels == number).sum() == max(1, round(0.2 * mine))
    assert labelled_subset(source, "100%", 0) is source


def test_a_list_of_names_must_be_in_the_data(tmp_path: Path) -> None:
    source = Scenes("train", 16, 50)
    names = [Path(source.describe(index)).name for index in (3, 7, 11)]
    (tmp_path / "some.txt").write_text("\n".join(names) + "\n")
    subset = labelled_subset(source, str(tmp_path / "some.txt"), 0)
    assert [subset.describe(i) for i in range(3)] == [source.describe(i) for i in (3, 7, 11)]
    (tmp_path / "some.txt").write_text("\n".join([*names, "n01.JPEG", "n02.JPEG"]))
    with pytest.raises(UserError, match="2 of the 5 images"):
        labelled_subset(source, str(tmp_path / "some.txt"), 0)
    for wrong in ("0%", "101%", "x%", str(tmp_path / "none.txt")):
        with pytest.raises(UserError, match="expected a fraction"):
            labelled_subset(source, wrong, 0)


def test_a_list_of_names_takes_paths_and_refuses_what_several_have(tmp_path: Path) -> None:
    paths = [f"train/{name}/{n}.jpg" for name in ("cat", "dog") for n in range(3)]
    files = Files(tmp_path / "pets", paths, labels=[0, 0, 0, 1, 1, 1], classes=("cat", "dog"))
    source, names = Subset(files, [0, 1, 3, 4, 5]), tmp_path / "some.txt"
    lines = ["cat/0.jpg", "./train/dog/1.jpg", "pets/train/dog/0.jpg", "2.jpg"]
    whole = str(tmp_path / "pets" / paths[1])
    names.write_text("\n".join([*lines, whole]), encoding="utf-8-sig")
    subset = labelled_subset(source, str(names), 0)
    assert [subset.describe(n) for n in range(len(subset))] == [*paths[:2], *paths[3:]]
    names.write_text("cat/0.jpg\n1.jpg\n")
    said = r"1\.jpg, which 2 images are called .*train/cat/1\.jpg and train/dog/1\.jpg"
    with pytest.raises(UserError, match=said):
        labelled_subset(source, str(names), 0)
    names.write_text("at/0.jpg\ndog/0.jpg\n")
    with pytest.raises(UserError, match=r"1 of the 2 images .*at/0\.jpg"):
        labelled_subset(source, str(names), 0)


def test_classes_without_a_labelled_image_are_told(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, names = open_data("scenes", image_size=32, limit=200).train, tmp_path / "some.txt"
    assert source is not None and source.labels is not None and source.classes is not None
    first = [int(np.flatnonzero(source.labels == number)[0]) for number in range(10)]
    assert without_labels(Subset(source, first), "some.txt") == []
    names.write_text("\n".join(source.describe(index) for index in first[:8]))
    given = words("finetune", trained, tmp_path, "--labels", str(names))
    given[given.index("--batch-size") + 1] = "4"
    assert run(given) == 0
    missing = ", ".join(source.classes[8:])
    assert f"has no image of 2 of the 10 classes ({missing})" in capsys.readouterr().out
    names.write_text(source.describe(first[3]))
    assert run(given) == 2
    assert f"of one class only, {source.classes[3]!r}" in capsys.readouterr().err


CLASSIFIES = [name for name in list_recipes("eval") if name.startswith(("linear", "finetune"))]


@pytest.mark.parametrize("name", CLASSIFIES)
def test_every_recipe_for_classification_runs(trained: Path, tmp_path: Path, name: str) -> None:
    task = name.split("_")[0]
    assert run(words(task, trained, tmp_path, "--recipe", name)) == 0
    assert result(tmp_path, task)["top5"] >= result(tmp_path, task)["top1"]
