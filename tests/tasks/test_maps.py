"""`lewel maps` and `lewel where` from the command line, on real tiny runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from lewel.cli.main import run
from lewel.config.commands import MapsConfig
from lewel.data.sources.scenes import Scenes
from lewel.data.sources.source import Subset
from lewel.evaluate.map_selection import agreement
from lewel.evaluate.views import make_views
from lewel.nn.backbone import MEAN, STD
from lewel.tasks.map_model import open_map_model
from lewel.tasks.maps import gallery_of
from tests.data.dense.test_voc import voc_tree
from tests.running import tiny_run, trained_once


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_once(tmp_path_factory, "with maps", "--image-size", "32")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for index in range(3):
        pixels = Scenes("val", size=60).read(index).permute(1, 2, 0).numpy()[:, :50]
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{index}.png")
    return folder


def entries(folder: Path) -> list[dict[str, dict[str, object]]]:
    return json.loads((folder / "results" / "where.json").read_text())


def where(folder: Path, *flags: str, data: str = "scenes") -> int:
    return run(["where", str(folder), "--data", data, "--accelerator", "cpu", *flags])


@pytest.mark.parametrize(("image_size", "side"), [(32, 4), (None, 16)])
def test_maps_are_those_of_the_head(
    trained: Path, photos: Path, image_size: int | None, side: int
) -> None:
    chosen = MapsConfig(n=8, rule="peaked", image_size=image_size)
    gallery = gallery_of(trained, [photos], chosen)
    assert sorted(gallery.chosen) == list(range(8)) and gallery.note is None
    assert f"maps of {side} by {side} locations" in gallery.caption
    assert gallery.images[0].views[0].image.shape == (8 * side, 8 * side, 3)
    assert ("trained at 32 px" in gallery.caption) == (image_size is None)
    model = open_map_model(trained)
    centre, scale = (torch.tensor(numbers).view(3, 1, 1) for numbers in (MEAN, STD))
    entropies = []
    for seen in gallery.images:
        assert [view.caption for view in seen.views] == ["input", "view 1", "view 2"]
        for view in seen.views:
            picture = torch.from_numpy(view.image.copy()).permute(2, 0, 1) / 255
            with torch.no_grad():
                whole = model.encoder((picture - centre)[None] / scale).maps[0]
            expected = whole[list(gallery.chosen)].reshape(8, side, side)
            # The gallery has views in 8 bits, the network gets float32.
            near = 1e-6 if view.caption == "input" else 2e-3
            assert np.allclose(view.maps, expected, atol=near)
            assert view.maps.sum((1, 2)) == pytest.approx(1.0, abs=1e-5)
            entropies.append(stats.entropy(view.maps.reshape(8, -1), axis=1))
    assert (np.diff(np.mean(entropies, 0)) >= -1e-7).all()


def test_the_image_whose_views_agree_best_comes_first(trained: Path) -> None:
    source, config = Scenes("val", size=48, length=5), MapsConfig(n=3, image_size=32)
    gallery = gallery_of(trained, source, config)
    model = open_map_model(trained)
    views = make_views(model.views(source, 0), np.arange(5))
    maps = [model.maps(view)[:, list(gallery.chosen)] for view in views.views]
    means = agreement(maps, views.boxes, views.flips, views.sizes).mean(1).nan_to_num(-9)
    order = [source.describe(int(at)) for at in means.argsort(descending=True)]
    assert [seen.name for seen in gallery.images] == order != sorted(order)


def test_views_are_those_of_training(trained: Path) -> None:
    model = open_map_model(trained)
    source = Subset(Scenes("train", size=48, length=40), np.arange(40))
    dataset = model.views(source, model.config.seed)
    views = make_views(dataset, np.array([7, 3]))
    batch = dataset.__getitems__([(0, 7), (0, 3)])
    for view in range(2):
        assert torch.equal(views.boxes[view], batch.boxes[view])
        assert torch.equal(views.flips[view], batch.flips[view])
    assert views.sizes.tolist() == [[48, 48]] * 2


def test_maps_writes_a_picture_and_a_page(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rule in ("peaked", "consistent", "different"):
        files = [str(photos / "0.png"), str(photos / "2.png")]
        assert run(["maps", str(trained), *files, "--n", "3", "--rule", rule]) == 0
        said = capsys.readouterr().out
        assert "2 images, 3 maps" in said and "maps.html" in said and "lewel where" in said
    with Image.open(trained / "maps" / "maps.png") as picture:
        assert picture.width > 3 * 100
    assert "0.png" in (trained / "maps" / "maps.html").read_text()
    assert run(["maps", str(trained), "scenes", "--limit", "2"]) == 0
    assert "scenes/val/1" in (trained / "maps" / "maps.html").read_text()


def test_wrong_input_is_one_message(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xffno")
    for code, words, expected in (
        (2, ["maps", str(trained)], "No images are given"),
        (2, ["maps", str(photos), str(photos)], "has no config.yaml"),
        (
            2,
            ["maps", str(trained), str(photos / "0.png"), str(photos)],
            "is a folder: give image files",
        ),
        (
            2,
            ["maps", str(trained), str(photos), "--n", "0"],
            "n is '0', but input should",
        ),
        (1, ["maps", str(trained), str(broken)], "broken.jpg is corrupt"),
        (2, ["where", str(trained), "--data", "nowhere"], "nowhere"),
    ):
        assert run(words) == code, words
        said = capsys.readouterr().err
        assert expected in said and "Traceback" not in said


def test_maps_of_a_method_without_maps_come_from_its_projector(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "byol"
    assert tiny_run(out, "--epochs", "1", "--image-size", "32", "--method", "byol") == 0
    assert run(["maps", str(out), str(photos)]) == 0
    assert "byol has no maps of its own" in capsys.readouterr().out
    assert "no maps of its own" in (out / "maps" / "maps.html").read_text()


@pytest.mark.parametrize("maps", ["separate", "random", "uniform"])
def test_maps_of_the_heads_of_the_ablations(tmp_path: Path, maps: str) -> None:
    out = tmp_path / maps
    assert tiny_run(out, "--epochs", "1", "--head.maps", maps, "--limit", "8") == 0
    gallery = gallery_of(out, Scenes("val", size=32, length=2), MapsConfig(n=2))
    assert gallery.note is not None and (maps == "separate" or maps in gallery.note)
    values = gallery.images[0].views[0].maps
    assert np.ptp(values) == 0 if maps == "uniform" else np.ptp(values) > 0
    again = gallery_of(out, Scenes("val", size=32, length=2), MapsConfig(n=2))
    assert np.array_equal(again.images[1].views[2].maps, gallery.images[1].views[2].maps)


def test_where_on_scenes_agrees_with_theory_for_the_baselines(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert where(trained, "--limit", "120") == 0
    said = capsys.readouterr().out
    assert "random maps" in said and "A perfect map" in said and "where.json" in said
    result = entries(trained)[-1]["result"]
    assert (result["images"], result["maps"], result["locations"]) == (120, 8, 16)
    uniform, chance = result["baselines"]["uniform"], result["baselines"]["random"]
    area = uniform["pointing"]["value"]
    assert 0.1 < area < 0.4
    assert uniform["iou"] == uniform["best_iou"]
    assert uniform["consistency"]["value"] is None and uniform["correlation"]["value"] is None
    assert uniform["entropy"]["value"] == pytest.approx(1.0)
    assert uniform["overlap"]["value"] == pytest.approx(1.0)
    for name, expected in (("pointing", area), ("consistency", 0.0), ("shuffled", 0.0)):
        low, high = chance[name]["interval"]
        assert abs(chance[name]["value"] - expected) < high - low  # about four standard errors
    assert uniform["matching"]["value"] is None and 0 < chance["matching"]["value"] < 0.3
    assert chance["iou"]["value"] > uniform["iou"]["value"] - 0.01
    assert chance["best_iou"]["value"] > chance["iou"]["value"]
    assert result["ideal_iou"]["value"] > chance["best_iou"]["value"]
    mine, initial = result["baselines"]["run"], result["baselines"]["untrained"]
    assert mine != initial and "run - randomly initialised" in said
    gain = mine["iou"]["value"] - initial["iou"]["value"]
    assert result["gain"]["iou"]["value"] == pytest.approx(gain, abs=1e-9)


def test_where_is_cached(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert where(trained, "--limit", "40") == 0
    before = entries(trained)
    capsys.readouterr()
    assert where(trained, "--limit", "40") == 0
    assert "cached in" in capsys.readouterr().out and entries(trained) == before
    assert where(trained, "--limit", "40", "--again") == 0
    assert "cached in" not in capsys.readouterr().out
    after = entries(trained)
    assert len(after) == len(before)
    assert after[-1]["result"]["baselines"] == before[-1]["result"]["baselines"]
    assert run(["results", str(trained)]) == 0
    assert "consistency" in capsys.readouterr().out


def test_where_on_voc_and_on_data_without_masks(
    trained: Path, tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = voc_tree(tmp_path, tuple(f"i{n}" for n in range(6)), (40, 40)).parent
    assert where(trained, data=str(root)) == 0
    result = entries(trained)[-1]["result"]
    assert result["data"] == "VOC2012" and result["images"] == 6
    # The centre crop takes 32 of 37 pixels, from the third on; the left 18.5 are object.
    fraction, uniform = 16.5 / 32, result["baselines"]["uniform"]
    assert uniform["pointing"]["value"] == pytest.approx(fraction, abs=0.001)
    assert uniform["iou"]["value"] == pytest.approx(fraction / (2 - fraction), abs=0.001)
    assert result["ideal_iou"]["value"] > 0.9
    capsys.readouterr()
    for mask in root.rglob("SegmentationClass/*.png"):
        Image.new("L", Image.open(mask).size).save(mask)
    assert where(trained, data=str(root)) == 0
    assert "No mask of VOC2012 shows an object in these 6 images" in capsys.readouterr().out
    assert where(trained, data=str(photos)) == 0
    assert "has no masks" in capsys.readouterr().out
    assert "pointing" not in entries(trained)[-1]["result"]["baselines"]["run"]


@pytest.mark.parametrize("name", ["backbone", "heads"])
def test_files_of_two_runs_are_not_mixed(
    trained: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny_run(tmp_path / "other", "--epochs", "1", "--limit", "16") == 0
    mixed = Path(shutil.copytree(trained, tmp_path / "mixed"))
    shutil.copy(tmp_path / "other" / f"{name}.safetensors", mixed)
    assert run(["maps", str(mixed), "scenes", "--out", str(tmp_path / "new")]) == 2
    assert "are of different runs (images is " in capsys.readouterr().err


def test_weights_of_two_equal_runs_are_not_mixed(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their cards differ in nothing."""
    for seed in ("1", "2"):
        assert tiny_run(tmp_path / seed, "--epochs", "1", "--seed", seed) == 0
    shutil.copy(tmp_path / "2" / "heads.safetensors", tmp_path / "1")
    assert run(["maps", str(tmp_path / "1"), "scenes", "--out", str(tmp_path / "new")]) == 2
    assert "were not trained together" in capsys.readouterr().err
