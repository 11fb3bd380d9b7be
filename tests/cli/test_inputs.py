"""Numbers and weights that cannot be used, by family, on every command that they concern."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lewel.config.build import build_plan
from lewel.config.pretrain import PretrainConfig
from lewel.data.sources.scenes import Scenes
from lewel.errors import UserError
from lewel.evaluate.results import fingerprint
from lewel.train.devices import placement
from tests.cli.making import EVALUATIONS, OTHERS, images, masks, refused, words_of
from tests.running import run, tiny_command

Change = Callable[[dict[str, torch.Tensor]], object]


def damaged(run_folder: Path, out: Path, change: Change) -> Path:
    """A copy of a run folder, its weights changed."""
    shutil.copytree(run_folder, out, dirs_exist_ok=True)
    file = out / "backbone.safetensors"
    with safe_open(file, framework="pt") as opened:
        about = opened.metadata()
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, about)
    return out


def with_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layer1.0.conv1.weight"][0, 0, 0] = torch.nan


def as_integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layer1.0.conv1.weight"] = tensors["layer1.0.conv1.weight"].to(torch.int32)


def too_large(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.endswith("weight")]:
        tensors[name] *= 1e25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_nan, "1 tensors with NaN or infinite values (layer1.0.conv1.weight)"),
        (as_integers, "layer1.0.conv1.weight as int32, expected floating-point"),
        (too_large, "not finite"),
    ],
)
def test_weights_that_are_no_numbers_are_refused_by_every_command(
    trained: Path,
    tmp_path: Path,
    change: Change,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = damaged(trained, trained.parent / change.__name__, change)
    slow = ["detect"] if change is with_nan else []  # it draws scenes
    for command in (*EVALUATIONS, "segment", *slow, *OTHERS):
        assert message in refused(words_of(command, wrong), capsys), command
    torch.save(load_file(wrong / "backbone.safetensors"), tmp_path / "theirs.pth")
    words = ["import", str(tmp_path / "theirs.pth"), "--out", str(tmp_path / "imported")]
    assert message in refused(words, capsys)
    if change is not too_large:  # training may scale them
        data = str(trained.parent / "data")
        words = tiny_command(tmp_path / "new", "--init", str(wrong), data=data)
        assert message in refused(words, capsys)
    assert not (tmp_path / "imported").exists() and not (tmp_path / "new").exists()


def test_a_result_of_weights_that_are_refused_now_is_not_an_answer(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = trained.parent / "data"
    assert run(words_of("knn", trained, data)) == 0
    run_folder = damaged(trained, tmp_path / "run", with_nan)
    file = run_folder / "results" / "knn.json"
    entries = json.loads(file.read_text())
    del entries[-1]["checksum"]
    entries[-1]["settings"]["weights"] = fingerprint(run_folder / "backbone.safetensors")
    file.write_text(json.dumps(entries))  # as an older version would have cached it
    assert "1 tensors with NaN" in refused(words_of("knn", run_folder, data), capsys)


@pytest.mark.parametrize(
    ("commands", "flags", "message"),
    [
        ("knn", "--neighbours 0", "greater than or equal to 1"),
        ("knn", "--neighbours -1 5", "greater than or equal to 1"),
        ("linear finetune", "--crop-scale 2 3", "at most 1, not 3"),
        ("linear finetune", "--crop-scale -1 1", "rising positive numbers, not -1 1"),
        ("linear finetune", "--crop-scale 1 0.5", "rising positive numbers, not 1 0.5"),
        ("detect", "--decays 0", "greater than 0"),
        ("detect", "--decays 0.5 1", "less than 1"),
        ("detect", "--short-sides 0", "greater than or equal to 16"),
        ("detect", "--proposals 0 1 1 1", "greater than or equal to 1"),
        ("knn linear finetune segment detect maps where", "--seed -1", "greater than or equal"),
        ("knn linear finetune segment detect maps where", f"--seed {2**64}", "less than"),
        ("segment", "--split nope", "has no split 'nope'"),
        ("segment", "--min-lr 1", "--min-lr 1, is above the first, --lr 0.01"),
        ("segment", "--lr 1e-5", "--min-lr 0.0001, is above the first, --lr 1e-05"),
        ("detect", "--train-split nope", "scenes has no split 'nope'"),
        ("detect", "--val-split nope", "scenes has no split 'nope'"),
    ],
)
def test_numbers_and_splits_are_checked_before_anything_runs(
    trained: Path, commands: str, flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands.split():
        assert message in refused([*words_of(command, trained), *flags.split()], capsys), command


@pytest.mark.parametrize(
    "flags", ["--views.crop-scale 2 3", "--views.crop-scale 0 1", f"--seed {2**64}"]
)
def test_pretrain_has_the_same_checks(
    tmp_path: Path, flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(tiny_command(tmp_path / "run", *flags.split()), capsys)


@pytest.mark.parametrize("command", ["knn", "linear --fast", "finetune", "export"])
def test_an_image_size_that_a_network_cannot_take(
    trained: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(command, trained)
    words[1] = "timm/vit_tiny_patch16_224"
    words += ["--random-init", "--image-size", "8", "--out", str(tmp_path)]
    assert "cannot take images of 8 px" in refused(words, capsys)


def test_identical_images_teach_nothing(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = images(tmp_path / "same", {"a": 20, "b": 20}, same=True)
    for command in EVALUATIONS:
        said = refused(words_of(command, trained, same), capsys)
        assert "have the same pixels, for example a/0.png and a/1.png" in said
    said = refused(tiny_command(tmp_path / "run", data=str(same)), capsys)
    assert "40 images of" not in said and "32 images of" in said  # --limit 32


def test_one_class_is_no_classification(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = images(tmp_path / "data", {"a": 20, "b": 20})
    (tmp_path / "classes.txt").write_text("a\n")
    rows = "".join(f"data/a/{index}.png,only\n" for index in range(20))
    (tmp_path / "one.csv").write_text(f"path,label\n{rows}")
    for command in EVALUATIONS:
        words = words_of(command, trained, tmp_path / "one.csv")
        assert "has one class, 'only'" in refused(words, capsys)
        words = [*words_of(command, trained, data), "--classes", str(tmp_path / "classes.txt")]
        assert "has one class, 'a'" in refused(words, capsys)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([255] * 8, "hold only 255, ignored pixels"),
        ([1] * 8, "hold only class 1"),
        ([0] * 8, "hold only class 0 (255 means ignored pixels)"),
    ],
)
def test_masks_without_classes(
    trained: Path,
    tmp_path: Path,
    values: list[int],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = masks(tmp_path / "data", values)
    assert message in refused(words_of("segment", trained, data), capsys)
    said = refused([*words_of("segment", trained, data), "--split", "nope"], capsys)
    assert "has no split 'nope'" in said


@pytest.mark.parametrize(
    ("many", "batch", "message"),
    [(1, 2, "has 1 image: pre-training needs 2 or more"), (3, 4, "use --batch-size 2 or less")],
)
def test_too_few_images_get_advice_that_works(many: int, batch: int, message: str) -> None:
    config = PretrainConfig(batch_size=batch)
    with pytest.raises(UserError, match=message):
        build_plan(config, Scenes("train", 16, many), torch.device("cpu"), placement(1, 1))
