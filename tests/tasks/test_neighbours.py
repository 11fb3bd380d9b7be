"""The nearest neighbours of a report: found by the trained and by the initial network."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.data.sources.scenes import Scenes
from lewel.data.views.transform import whole_view
from lewel.errors import UserError
from lewel.interop.backbones import find_network, open_backbone
from lewel.nn.backbone import MEAN, STD
from lewel.pages.neighbours import Neighbours
from lewel.tasks.neighbours import NEAREST, QUERIES, affordable, neighbours_of_run
from tests.conftest import small_backbone
from tests.running import tiny_run, trained_once


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_once(tmp_path_factory, "neighbours", "--limit", "64")


@pytest.fixture(scope="module")
def found(trained: Path) -> Neighbours:
    made = neighbours_of_run(trained)
    assert made is not None
    return made


def features(run: Path, names: list[str]) -> torch.Tensor:
    """Unit features of scenes by their names, as `lewel knn` sees them."""
    centre, scale = (torch.tensor(numbers).view(3, 1, 1) for numbers in (MEAN, STD))
    backbone = open_backbone(run, find_network(run))
    images = []
    for name in names:
        _, split, index = name.split("/")
        scene = scenes(split).read(int(index))
        images.append((whole_view(scene, 16) / 255 - centre) / scale)
    with torch.no_grad():
        return torch.nn.functional.normalize(backbone(torch.stack(images)).mean(1), dim=1)


@cache
def scenes(split: str) -> Scenes:
    return Scenes(split, size=24)


def test_neighbours_are_in_the_order_of_their_similarity(trained: Path, found: Neighbours) -> None:
    assert (len(found.queries), found.bank, found.held_out) == (QUERIES, 64, True)
    changed = 0
    for query in found.queries:
        assert query.image.name.startswith("scenes/val/")
        assert len(query.before) == len(query.after) == NEAREST
        rows = features(trained, [query.image.name, *(one.name for one in query.after)])
        similarity = rows[1:] @ rows[0]
        assert (similarity.diff() <= 1e-6).all()
        others = features(trained, [one.name for one in query.before]) @ rows[0]
        assert similarity[-1] >= others.min() - 1e-6
        changed += [one.name for one in query.before] != [one.name for one in query.after]
        assert query.image.image.shape == (128, 128, 3)
    assert changed and len({query.image.label for query in found.queries}) == QUERIES


def test_labels_are_those_of_the_data_and_are_counted(found: Neighbours) -> None:
    train, same = scenes("train"), 0
    for query in found.queries:
        for one in query.after:
            assert one.label == train.classes[train.labels[int(one.name.split("/")[2])]]
            same += one.label == query.image.label
    assert f"after training {same} (framed)" in found.summary
    assert "6 validation images and their nearest neighbours among 64 training" in found.summary


def test_two_calls_find_the_same(trained: Path, found: Neighbours) -> None:
    torch.manual_seed(99)
    again = neighbours_of_run(trained)
    assert again is not None
    for one, two in zip(found.queries, again.queries, strict=True):
        assert [t.name for t in (one.image, *one.before, *one.after)] == [
            t.name for t in (two.image, *two.before, *two.after)
        ]


def test_images_without_labels_are_searched_among_each_other(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for index in range(12):
        pixels = np.random.default_rng(index).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{index}.png")
    out = tmp_path / "run"
    assert tiny_run(out, "--epochs", "1", data=str(photos)) == 0
    for index in range(3):  # since then
        (photos / f"{index}.png").write_bytes(b"no image")
    found = neighbours_of_run(out)
    assert found is not None and not found.held_out and "class" not in found.summary
    for query in found.queries:
        names = [one.name for one in (query.image, *query.before, *query.after)]
        assert not {"0.png", "1.png", "2.png"} & set(names) and query.image.label is None
        assert query.image.name not in names[1:]


def test_the_bank_is_smaller_for_larger_networks() -> None:
    small = affordable(small_backbone(), 16)
    assert small == 500 and 50 <= affordable(small_backbone(64), 224) < small


def test_a_run_without_a_checkpoint_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("data: scenes\n")
    assert neighbours_of_run(tmp_path) is None


def test_a_run_from_other_weights_is_compared_with_these(trained: Path, tmp_path: Path) -> None:
    first, run = tmp_path / "first.safetensors", tmp_path / "run"
    first.write_bytes((trained / "backbone.safetensors").read_bytes())
    assert tiny_run(run, "--epochs", "1", "--limit", "64", "--init", str(first)) == 0
    found, before = neighbours_of_run(run), neighbours_of_run(trained)
    assert found is not None and before is not None
    assert found.titles[0] == "Weights of --init" and "With the weights of --init" in found.summary
    for mine, theirs in zip(found.queries, before.queries, strict=True):
        assert [one.name for one in mine.before] == [one.name for one in theirs.after]
    first.unlink()
    with pytest.raises(UserError, match="does not exist"):
        neighbours_of_run(run)
