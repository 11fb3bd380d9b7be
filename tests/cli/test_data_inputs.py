"""Data that is not what the user meant, by family, on every command that it concerns."""

import json
import os
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lewel
from lewel.cli.main import run
from lewel.config.recipes import read_recipe
from lewel.errors import UserError
from tests.cli.making import CPU, EVALUATIONS, images, masks, refused, words_of
from tests.running import tiny_command

Captured = pytest.CaptureFixture[str]


def split(root: Path, train: dict[str, int], val: dict[str, int], name: str = "val") -> Path:
    images(root / "train", train)
    (root / name).mkdir()
    images(root / name, val)
    return root


@pytest.mark.parametrize(
    ("val", "message"),
    [
        ({}, "data/val holds no image: it has no files"),
        ({"a": 4}, "have different class folders, b only in train"),
        ({"a": 4, "b": 4, "c": 4}, "have different class folders, c only in val"),
    ],
)
def test_a_validation_set_that_does_not_fit_is_not_replaced_by_training_images(
    trained: Path, tmp_path: Path, val: dict[str, int], message: str, capsys: Captured
) -> None:
    data = split(tmp_path / "data", {"a": 5, "b": 5}, val)
    for command in EVALUATIONS:
        assert message in refused(words_of(command, trained, data), capsys), command


def test_what_is_evaluated_is_printed_with_a_warning_if_it_is_little(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = split(tmp_path / "data", {"a": 5, "b": 5}, {"": 3}, "test")  # test/ without labels
    words = [*words_of("knn", trained, data), "--out", str(tmp_path / "out")]
    for _ in range(2):  # computed, and cached
        assert run(words) == 0
        said = capsys.readouterr().out
        assert "data/test/ has no class folders: it is not used for validation." in said
        assert "1 of its 10 images are held out for validation" in said
        assert "Warning: 1 images are too few to evaluate on" in said
    assert run(["results", str(tmp_path / "out")]) == 0
    assert "1 (too few)" in capsys.readouterr().out
    page = lewel.knn(trained, data, out=tmp_path / "out", workers=0, accelerator="cpu")
    assert "1 (too few)" in page._repr_html_()
    capsys.readouterr()
    plenty = images(tmp_path / "plenty", {"a": 150, "b": 150})
    assert run([*words_of("knn", trained, plenty), "--out", str(tmp_path / "out")]) == 0
    assert "Warning" not in capsys.readouterr().out


def test_segment_and_where_warn_of_few_images(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*words_of("segment", trained), "--lr", "0.01,0.02", "--out", str(tmp_path)]
    assert run(words) == 0
    assert capsys.readouterr().out.count("Warning: 1 images are too few") == 1
    assert run(words_of("where", trained)) == 0
    assert "Warning: 4 images are too few" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["pretrain", ""],
        ["pretrain", "scenes", "--out", ""],
        ["pretrain", "scenes", "--out="],
        ["pretrain", "scenes", "--init", ""],
        ["knn", "", "--data", "scenes"],
        ["linear", "resnet18", "--data", ""],
        ["segment", "resnet18", "--data", ""],
        ["detect", "resnet18", "--data", ""],
        ["maps", "run", ""],
        ["where", "run", "--data", ""],
        ["embed", "", "scenes"],
        ["export", "", "--to", "onnx"],
        ["import", ""],
        ["pack", "", "out"],
        ["pack", "scenes", ""],
        ["results", ""],
        ["report", "run", "--out", ""],
        ["watch", ""],
        ["reproduce", "--data-root", ""],
    ],
)
def test_an_empty_word_is_not_the_current_folder(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is empty: is a variable of the shell unset?" in refused(words, capsys)


def test_an_empty_name_is_not_the_current_folder_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(images(tmp_path, {"a": 2}))
    for given in ({"data": ""}, {"data": "scenes", "out": ""}):
        with pytest.raises(UserError, match="empty name"):
            lewel.pretrain(**given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 1\nbatch_size: 4\nepochs: 9\n", "line 3 gives the key epochs again"),
        ("optim: {lr: 1, lr: 2}\n", "line 1 gives the key lr again"),
        ("# nothing\n", "is empty: expected keys and values"),
    ],
)
def test_a_recipe_that_is_ambiguous_or_empty(
    trained: Path, tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    commands = [words_of(c, trained) for c in ("linear", "finetune", "segment")]
    for words in (*commands, ["pretrain", "scenes"]):
        assert message in refused([*words, "--recipe", str(recipe)], capsys), words


@pytest.mark.parametrize(
    ("command", "recipe", "owner"),
    [
        ("pretrain", "detect_scenes_small", "detect"),
        ("linear", "detect_scenes_small", "detect"),
        ("linear", "scenes_few_labels", "finetune"),
        ("finetune", "linear_lewel_b", "linear"),
        ("segment", "scenes_demo", "pretrain"),
        ("segment", "FILE", "pretrain"),
    ],
)
def test_a_recipe_of_another_command(
    trained: Path, command: str, recipe: str, owner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe.replace("FILE", str(trained / "config.yaml"))
    words = ["pretrain", "scenes"] if command == "pretrain" else words_of(command, trained)
    said = refused([*words, "--recipe", recipe], capsys)
    assert f"is a recipe for `lewel {owner}`, not for `lewel {command}`" in said
    if command == "finetune":
        with pytest.raises(UserError, match="is a recipe for `lewel linear`"):
            lewel.finetune(trained, "scenes", recipe=recipe)
        assert "lr" in read_recipe(recipe, "eval")


@pytest.mark.parametrize("command", [*EVALUATIONS, "segment", "embed", "export"])
def test_an_architecture_that_contradicts_the_run(
    trained: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = sorted((trained / "checkpoints").glob("*.pt"))[-1]
    flags = ("--network", "--backbone") if command == "embed" else ("--backbone",)
    for what, flag in product((trained, checkpoint), flags):
        words = [*words_of(command, trained), flag, "resnet18"]
        words[1] = str(what)
        assert f"{what} is resnet10, but --backbone is resnet18" in refused(words, capsys)
    if command != "embed":  # which has no --random-init
        words[1:2] = ["resnet50", "--random-init"]
        assert "resnet50 is resnet50, but --backbone is resnet18" in refused(words, capsys)


def coco(root: Path, name: str = "0.png", box: str = "[2, 2, 9, 9]", width: str = "40") -> Path:
    """Two images with an object each; the text of the JSON is given in part."""
    (root / "annotations").mkdir(parents=True)
    images(root, {"train": 2, "val": 2}, size=40)
    for split in ("train", "val"):
        text = (
            f'{{"images": [{{"id": 1, "file_name": "{name}", "width": {width}, "height": 40}}],'
            f'"annotations": [{{"id": 1, "image_id": 1, "category_id": 1, "bbox": {box}}}],'
            '"categories": [{"id": 1, "name": "cat"}]}'
        )
        (root / "annotations" / f"instances_{split}.json").write_text(text)
    return root


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "../secret.png"}, "names ../secret.png, which leads out of its folder"),
        ({"name": "a/../../x.png"}, "leads out of its folder"),
        ({"name": "/etc/x.png"}, "names /etc/x.png, which leads out of its folder"),
        ({"box": "[NaN, 2, 9, 9]"}, "it holds NaN, which is no number"),
        ({"box": "[2, 2, Infinity, 9]"}, "it holds Infinity, which is no number"),
        ({"box": "[2, 2, 1e999, 9]"}, "annotations without a bbox of four numbers"),
        ({"width": "1e999"}, "images without a number as width"),
    ],
)
def test_coco_files_are_checked(
    trained: Path, tmp_path: Path, given: dict[str, str], message: str, capsys: Captured
) -> None:
    data = coco(tmp_path / "data", **given)
    images(tmp_path, {"": 1})
    shutil.move(tmp_path / "0.png", tmp_path / "secret.png")
    assert message in refused(words_of("detect", trained, data), capsys)


def test_pascal_voc_and_packs_stay_in_their_folder(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    voc = tmp_path / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "Annotations", "ImageSets/Main"):
        (voc / folder).mkdir(parents=True)
    (voc / "ImageSets" / "Segmentation").mkdir()
    for kind in ("Main", "Segmentation"):
        for name in ("train", "val"):
            (voc / "ImageSets" / kind / f"{name}.txt").write_text(f"../../{name}\n")
    for command in ("segment", "detect", "where"):
        said = refused(words_of(command, trained, voc), capsys)
        assert "names ../../" in said and "which leads out of its folder" in said, command
    data = trained.parent / "data"
    assert run(["pack", str(data), str(tmp_path / "pack"), "--workers", "0"]) == 0
    index = tmp_path / "pack" / "lewel-index.json"
    text = index.read_text()
    shutil.copy(tmp_path / "pack" / "train-000000.tar", tmp_path / "outside.tar")
    index.write_text(text.replace('"train-000000.tar"', '"../outside.tar"'))
    pack = str(tmp_path / "pack")
    for words in (
        tiny_command(tmp_path / "run", data=pack),
        words_of("knn", trained, pack),
        ["embed", str(trained), pack],
        ["pack", "--check", pack],
    ):
        assert "names ../outside.tar, which leads out" in refused(words, capsys)


def test_a_box_with_nan_in_pascal_voc(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    voc = tmp_path / "VOC2012"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (voc / folder).mkdir(parents=True)
    for name in ("train", "val"):
        (voc / "ImageSets" / "Main" / f"{name}.txt").write_text(name)
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(voc / "JPEGImages" / f"{name}.jpg")
        box = "<xmin>nan</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax>"
        text = f"<a><object><name>cat</name><bndbox>{box}</bndbox></object></a>"
        (voc / "Annotations" / f"{name}.xml").write_text(text)
    said = refused(words_of("detect", trained, voc), capsys)
    assert "the box of cat is [nan, 2.0, 9.0, 9.0]" in said


def copied(run_folder: Path, out: Path) -> Path:
    """A run folder without its results."""
    return Path(shutil.copytree(run_folder, out, ignore=shutil.ignore_patterns("results")))


def entries(folder: Path, task: str) -> list[dict[str, dict[str, object]]]:
    return json.loads((folder / "results" / f"{task}.json").read_text())


def test_two_random_networks_with_one_out_are_two_evaluations(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = trained.parent / "data", tmp_path / "out"
    common = ["--data", str(data), *CPU, "--image-size", "32", "--random-init", "--out", str(out)]
    assert run(["knn", str(trained), *common]) == 0
    assert run(["knn", "resnet18", *common]) == 0
    assert "cached in" not in capsys.readouterr().out
    assert [one["result"]["backbone"] for one in entries(out, "knn")] == ["resnet10", "resnet18"]
    assert run(["knn", "resnet18", *common]) == 0
    assert "cached in" in capsys.readouterr().out


def test_older_results_are_found_where_they_are_still_right(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results of randomly initialised networks did not name the network."""
    run_folder = copied(trained, tmp_path / "run")
    words = [*words_of("knn", run_folder, trained.parent / "data"), "--random-init"]
    foreign = [*words, "--out", str(tmp_path / "foreign")]
    for command, folder in ((words, run_folder), (foreign, tmp_path / "foreign")):
        assert run(command) == 0
        kept = entries(folder, "knn")
        assert kept[-1]["settings"].pop("network") == "resnet10 small 8"
        assert kept[-1]["settings"].pop("image_files") and kept[-1].pop("checksum")
        (folder / "results" / "knn.json").write_text(json.dumps(kept))
    capsys.readouterr()
    assert run(words) == 0
    assert "cached in" in capsys.readouterr().out
    assert run(foreign) == 0  # any network may have been evaluated into it
    assert "cached in" not in capsys.readouterr().out
    before = len(entries(run_folder, "knn"))
    assert run([*words, "--recompute"]) == 0
    assert len(entries(run_folder, "knn")) == before  # it replaces the older one


def test_a_result_that_was_edited_is_not_shown(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = copied(trained, tmp_path / "run")
    words = words_of("knn", run_folder, trained.parent / "data")
    assert run(words) == 0
    path = run_folder / "results" / "knn.json"
    kept = json.loads(path.read_text())
    kept[-1]["result"]["top1"] = 5.0
    path.write_text(json.dumps(kept))
    for command in (words, ["results", str(run_folder)]):
        assert run(command) == 1
        assert "knn.json is damaged (an entry was changed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["segment", "where"])
def test_changed_masks_and_images_are_evaluated_again(
    trained: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = masks(tmp_path / "data", [0, 1, 1, 0, 1, 0, 1, 0])
    changed = data / "masks" / "3.bmp"  # not compressed: all masks have the same size
    if command == "where":  # takes Pascal VOC's masks
        voc = tmp_path / "VOC2012"
        (voc / "ImageSets" / "Segmentation").mkdir(parents=True)
        shutil.copytree(data / "masks", voc / "SegmentationClass")
        (voc / "JPEGImages").mkdir()
        for file in (data / "images").iterdir():
            Image.open(file).save(voc / "JPEGImages" / f"{file.stem}.jpg")
        (voc / "ImageSets" / "Segmentation" / "val.txt").write_text("0\n1\n2\n3\n")
        data, changed = voc, voc / "SegmentationClass" / "3.png"
    else:
        for file in list((data / "masks").iterdir()):
            Image.open(file).save(file.with_suffix(".bmp"))
            file.unlink()
    run_folder = copied(trained, tmp_path / "run")
    words = words_of(command, run_folder, data)

    def is_cached() -> bool:
        capsys.readouterr()
        assert run(words) == 0
        return "cached in" in capsys.readouterr().out

    assert not is_cached() and is_cached()
    file = run_folder / "results" / f"{command}.json"
    older = json.loads(file.read_text())
    for one in older:
        del one["settings"]["mask_files"], one["settings"]["image_files"], one["checksum"]
        one["result"]["written"] = "2999-01-01 00:00:00+0000"
    file.write_text(json.dumps(older))
    assert is_cached()  # the masks are older than the result
    for one in older:
        one["result"]["written"] = "2001-01-01 00:00:00+0000"
    file.write_text(json.dumps(older))
    assert not is_cached()
    size = changed.stat().st_size
    Image.fromarray(np.full((40, 40), 1, np.uint8)).save(changed)
    assert command == "where" or changed.stat().st_size == size
    assert not is_cached() and is_cached()
    image = next((data / ("JPEGImages" if command == "where" else "images")).glob("3.*"))
    shutil.copy(image.with_stem("2"), image)  # another image of that name
    assert not is_cached() and is_cached()


def test_a_list_of_labels_counts_by_its_content(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, names = trained.parent / "data", tmp_path / "names.txt"
    words = [*words_of("finetune", trained, data), "--labels", str(names), "--out", str(tmp_path)]
    names.write_text("a/0.png\na/1.png\nb/0.png\n")
    assert run(words) == 0
    names.write_text("a/3.png\nb/4.png\nb/5.png\n")
    assert run(words) == 0
    assert "cached in" not in capsys.readouterr().out
    assert run(words) == 0
    assert "cached in" in capsys.readouterr().out
    os.truncate(names, 0)
    assert "is empty: expected the name of an image" in refused_after_notes(words, capsys)


def refused_after_notes(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(words) == 2
    return capsys.readouterr().err


def test_a_cached_result_without_numbers_is_not_used(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*words_of("segment", trained), "--out", str(tmp_path)]
    assert run(words) == 0
    kept = entries(tmp_path, "segment")
    del kept[0]["checksum"]  # as an older version wrote it
    kept[0]["result"]["miou"] = float("nan")
    (tmp_path / "results" / "segment.json").write_text(json.dumps(kept))
    capsys.readouterr()
    assert run(words) == 0
    said = capsys.readouterr().out
    assert "cached in" not in said and "nan" not in said
